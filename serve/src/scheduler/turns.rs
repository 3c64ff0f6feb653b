//! Turns: a row that has run long enough makes room for what waits, and comes back where it stopped.
//!
//! The engine saves the sequence byte for byte and restores it, so its tokens are those of a run that was never
//! paused. A row runs at least `slice` tokens of each turn, so the copies are paid for by that many steps; what
//! was paused waits behind everyone who already waited. Saved sequences are bounded: at most `paused` of them
//! wait, and one more exists while two change places.

use std::sync::atomic::Ordering::Relaxed;

use super::core::{Core, Row, Stage, Waiting, fail, has_room};
use super::engine::{EngineError, StepEngine, TextModel};
use super::request::Failure;
use super::status::Phase;

impl<E: StepEngine, T: TextModel> Core<E, T> {
    /// Sequences that are saved and wait for a row.
    pub(super) fn paused(&self) -> usize {
        self.queue.iter().filter(|w| matches!(w, Waiting::Paused(_))).count()
    }

    /// Lets a paused row whose reader still stalls wait behind the others.
    pub(super) fn pass_stalled(&mut self) {
        for _ in 0..self.queue.len() {
            match self.queue.pop_front() {
                Some(Waiting::Paused(row)) if !has_room(&row) => self.queue.push_back(Waiting::Paused(row)),
                Some(other) => return self.queue.push_front(other),
                None => return,
            }
        }
    }

    /// Pauses the row whose turn is over, if one is and what waits in front may have its place.
    pub(super) fn make_room(&mut self) -> Result<bool, String> {
        let paused = self.paused();
        let may = match self.queue.front() {
            Some(Waiting::New(_)) => paused < self.config.paused,
            // It leaves the saved ones as another joins them. Without a reader it needs no row.
            Some(Waiting::Paused(row)) => has_room(row) && paused <= self.config.paused,
            None => false,
        };
        let Some(index) = self.whose_turn_is_over().filter(|_| may) else { return Ok(false) };
        self.status.enter(Phase::Evict);
        let saved = self.engine.evict(self.rows[index].seq);
        self.status.enter(Phase::Idle);
        saved.map_err(|error| match error {
            EngineError::Fatal(message) => message,
            other => format!("saving a sequence: {other}"),
        })?;
        let mut row = self.rows.remove(index);
        row.ran = 0;
        self.queue.push_back(Waiting::Paused(Box::new(row)));
        self.status.preemptions.fetch_add(1, Relaxed);
        Ok(true)
    }

    /// The row to pause: one whose reader stalls, else the one that has run longest beyond a slice.
    fn whose_turn_is_over(&self) -> Option<usize> {
        let slice = self.config.slice;
        let turn = |row: &Row<E::Seq>| {
            let decoding = matches!(row.stage, Stage::Decode { .. }) && !row.over && slice > 0;
            let stalled = !has_room(row) && row.stalled_since.is_some();
            (decoding && (stalled || row.ran >= slice)).then_some((stalled, row.ran))
        };
        let over = self.rows.iter().enumerate().filter_map(|(i, row)| Some((turn(row)?, i)));
        // Of equals the first: it has been here longest.
        over.max_by_key(|(turn, i)| (*turn, usize::MAX - i)).map(|(_, i)| i)
    }

    /// Restores a paused row; gives it back when there is no room yet.
    pub(super) fn resume(&mut self, mut row: Box<Row<E::Seq>>) -> Result<Option<Waiting<E::Seq>>, String> {
        self.status.enter(Phase::Restore);
        let restored = self.engine.restore(row.seq);
        self.status.enter(Phase::Idle);
        match restored {
            Ok(true) => {
                if has_room(&row) {
                    row.stalled_since = None;
                }
                self.rows.push(*row);
                Ok(None)
            }
            Ok(false) if !self.rows.is_empty() => Ok(Some(Waiting::Paused(row))),
            Err(EngineError::Fatal(message)) => {
                self.queue.push_front(Waiting::Paused(row));
                Err(message)
            }
            refused => {
                let why =
                    refused.err().map_or_else(|| "no room in an empty engine".into(), |e| e.to_string());
                fail(&self.status, &row.ticket, Failure::Refused(format!("restoring the sequence: {why}")));
                self.engine.release(row.seq);
                Ok(None)
            }
        }
    }
}
