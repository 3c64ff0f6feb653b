//! The scheduler over a scripted engine: each test is named after what it protects.

mod common;

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::*;
use futures::future::join_all;
use sparkpipe::scheduler::{Config, Event, Failure, Finish, Life, SubmitError};

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn the_ninth_request_on_a_batch_of_eight_waits_and_the_step_never_runs_above_eight() {
    let (scheduler, knobs) = start(Fake::hashing(limits(8)), config());
    knobs.step_ms.store(1, SeqCst);
    let handle = scheduler.handle();
    let all: Vec<_> = (0..24).map(|i| handle.submit(request(&format!("p{i}"), 20)).unwrap()).collect();
    assert!(within(SOON, || handle.status().waiting.load(SeqCst) >= 16).await, "sixteen of them wait");
    for outcome in join_all(all.into_iter().map(finish)).await {
        let (text, reason, usage) = outcome.unwrap();
        assert_eq!((text.len(), reason, usage.completion), (20, Finish::Length, 20));
    }
    assert_eq!(knobs.peak.load(SeqCst), 8);
}

#[tokio::test]
async fn a_full_queue_refuses_instead_of_growing() {
    let (scheduler, knobs) = start(Fake::hashing(limits(8)), Config { queue: 2, ..config() });
    knobs.step_ms.store(5, SeqCst);
    let handle = scheduler.handle();
    let held: Vec<_> = (0..10).map(|_| handle.submit(request("x", 100)).unwrap()).collect();
    let refused = handle.submit(request("x", 1)).err();
    assert_eq!(refused, Some(SubmitError::QueueFull { seats: 10 }));
    assert_eq!(handle.status().refused.load(SeqCst), 1);
    drop(held);
    assert!(within(SOON, || handle.free_seats() == 10).await, "seats come back when clients leave");
    assert!(handle.submit(request("x", 1)).is_ok());
}

#[tokio::test]
async fn answers_do_not_depend_on_neighbours_or_order_of_arrival() {
    let prompts: Vec<String> = (0..20).map(|i| "ab".repeat(1 + i * 3) + &i.to_string()).collect();
    let mut alone = HashMap::new();
    let (scheduler, _) = start(Fake::hashing(limits(1)), config());
    for prompt in &prompts {
        let generation = scheduler.handle().submit(request(prompt, 30)).unwrap();
        alone.insert(prompt.clone(), finish(generation).await.unwrap().0);
    }
    for batch in [2, 5, 16] {
        for reversed in [false, true] {
            let (scheduler, _) = start(Fake::hashing(limits(batch)), config());
            let mut order = prompts.clone();
            if reversed {
                order.reverse();
            }
            let running: Vec<_> =
                order.iter().map(|p| scheduler.handle().submit(request(p, 30)).unwrap()).collect();
            for (prompt, generation) in order.iter().zip(running) {
                assert_eq!(finish(generation).await.unwrap().0, alone[prompt], "batch {batch}");
            }
        }
    }
}

#[tokio::test]
async fn cancelling_while_queued_prefilling_or_decoding_frees_within_one_step() {
    let (scheduler, knobs) = start(Fake::hashing(limits(1)), config());
    let handle = scheduler.handle();
    // Decoding: the first delta proves the state. Steps are long against what a busy machine holds this thread up.
    knobs.step_ms.store(100, SeqCst);
    let mut decoding = handle.submit(request("d", 200)).unwrap();
    assert!(matches!(decoding.next().await, Some(Event::Delta(_))));
    // Queued behind it: leaves without ever reaching the engine.
    let queued = handle.submit(request("q", 200)).unwrap();
    assert!(within(SOON, || handle.status().waiting.load(SeqCst) == 1).await);
    drop(queued);
    assert!(within(SOON, || handle.status().waiting.load(SeqCst) == 0).await, "left the queue");
    assert_eq!(knobs.resident.load(SeqCst), 1);
    let before = knobs.steps.load(SeqCst);
    drop(decoding);
    assert!(within(SOON, || knobs.free_slots.load(SeqCst) == 1).await);
    assert!(knobs.steps.load(SeqCst) - before <= 1, "at most the step that was running");
    // Prefilling: fifteen chunks of 100 ms, dropped in the first ones.
    knobs.prefill_ms.store(100, SeqCst);
    let chunks = handle.status().chunks.load(SeqCst);
    let prefilling = handle.submit(request(&"p".repeat(240), 4)).unwrap();
    assert!(within(SOON, || handle.status().chunks.load(SeqCst) > chunks).await);
    drop(prefilling);
    assert!(within(SOON, || knobs.free_slots.load(SeqCst) == 1).await);
    assert!(handle.status().chunks.load(SeqCst) - chunks <= 4, "the prompt was not run to its end");
    assert!(within(SOON, || handle.status().cancelled.load(SeqCst) == 3).await);
    assert_eq!(knobs.free_pages.load(SeqCst), 16);
}

/// xorshift64*: tests need only spread, and the same one each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

#[tokio::test]
async fn slots_and_pages_are_conserved_under_random_aborts() {
    for seed in 1..=6u64 {
        let mut dice = Dice(seed);
        let mut pool = limits(4);
        // Fewer pages than four long sequences need, so admission waits on pages too.
        pool.pages = 24;
        // Every second time the rows take turns.
        let slice = if seed % 2 == 0 { 3 } else { 0 };
        let config = Config { slice, paused: 3, ..config() };
        let (scheduler, knobs) = start(Fake::hashing(pool), config);
        let handle = scheduler.handle();
        let mut running = Vec::new();
        for _ in 0..120 {
            let prompt = "r".repeat(1 + dice.below(150) as usize);
            if let Ok(generation) = handle.submit(request(&prompt, 1 + dice.below(100) as usize)) {
                running.push(generation);
            }
            if dice.below(3) == 0 {
                tokio::time::sleep(Duration::from_micros(dice.below(800))).await;
            }
            if !running.is_empty() && dice.below(2) == 0 {
                drop(running.swap_remove(dice.below(running.len() as u64) as usize));
            }
        }
        for outcome in join_all(running.into_iter().map(finish)).await {
            assert!(outcome.is_ok(), "{outcome:?}");
        }
        let full = || {
            knobs.free_slots.load(SeqCst) == 4
                && knobs.saved.load(SeqCst) == 0
                && knobs.free_pages.load(SeqCst) == 24
                && handle.free_seats() == handle.total_seats()
        };
        assert!(within(SOON, full).await, "seed {seed}: everything is back in its pool");
        let status = handle.status();
        let ended = [&status.done, &status.cancelled, &status.failed].map(|n| n.load(SeqCst));
        assert_eq!(ended.iter().sum::<u64>() + status.refused.load(SeqCst), 120, "{ended:?}");
    }
}

#[tokio::test]
async fn a_fatal_step_fails_every_request_and_accepts_no_more() {
    let (scheduler, knobs) = start(Fake::hashing(limits(2)), config());
    knobs.step_ms.store(5, SeqCst);
    let handle = scheduler.handle();
    let all: Vec<_> = (0..5).map(|_| handle.submit(request("x", 200)).unwrap()).collect();
    assert!(within(SOON, || knobs.steps.load(SeqCst) > 2).await);
    knobs.fail_step.store(true, SeqCst);
    for outcome in join_all(all.into_iter().map(finish)).await {
        assert_eq!(outcome.err(), Some(Failure::EngineDead("scripted device loss".into())));
    }
    assert!(within(SOON, || matches!(handle.status().life(), Life::Dead(_))).await);
    assert!(matches!(handle.submit(request("x", 1)), Err(SubmitError::Down(Failure::EngineDead(_)))));
    assert!(within(SOON, || handle.free_seats() == handle.total_seats()).await);
}

#[tokio::test]
async fn a_panic_of_the_engine_is_a_typed_failure_not_a_silent_death() {
    let (scheduler, knobs) = start(Fake::hashing(limits(2)), config());
    knobs.panic_step.store(true, SeqCst);
    let handle = scheduler.handle();
    let running = handle.submit(request("x", 10)).unwrap();
    let outcome = finish(running).await;
    assert!(matches!(outcome, Err(Failure::EngineDead(_))), "{outcome:?}");
    assert!(within(SOON, || !handle.status().life().is_running()).await);
}

#[tokio::test]
async fn a_frozen_step_trips_the_watchdog_and_names_the_call_it_is_in() {
    let config = Config { call_limit: Duration::from_millis(200), ..config() };
    let (scheduler, knobs) = start(Fake::hashing(limits(2)), config);
    let handle = scheduler.handle();
    let running = handle.submit(request("x", 200)).unwrap();
    assert!(within(SOON, || knobs.steps.load(SeqCst) > 2).await);
    knobs.hang.store(true, SeqCst);
    let frozen = Instant::now();
    match finish(running).await {
        Ok(outcome) => panic!("the answer ended before the freeze: {outcome:?}"),
        Err(failure) => assert!(
            matches!(failure, Failure::EngineStuck { phase: "step" | "prefill", limit_ms: 200, .. }),
            "{failure:?}"
        ),
    }
    assert!(frozen.elapsed() < Duration::from_millis(1200));
    assert!(matches!(handle.submit(request("x", 1)), Err(SubmitError::Down(Failure::EngineStuck { .. }))));
    // A call that comes back late leaves a working server and no leaked slot.
    knobs.hang.store(false, SeqCst);
    assert!(within(SOON, || handle.status().life().is_running()).await);
    assert!(within(SOON, || knobs.free_slots.load(SeqCst) == 2).await);
    assert!(finish(handle.submit(request("x", 3)).unwrap()).await.is_ok());
}

#[tokio::test]
async fn a_deadline_holds_while_queued_and_while_decoding() {
    let (scheduler, knobs) = start(Fake::hashing(limits(1)), config());
    knobs.step_ms.store(5, SeqCst);
    let handle = scheduler.handle();
    let limit = Duration::from_millis(150);
    let mut first = request("x", 200);
    first.deadline = limit;
    let mut second = request("y", 200);
    second.deadline = limit / 2;
    let (first, second) = (handle.submit(first).unwrap(), handle.submit(second).unwrap());
    let (first, second) = tokio::join!(finish(first), finish(second));
    assert_eq!(first.err(), Some(Failure::Deadline { stage: "decoding", limit }));
    assert_eq!(second.err(), Some(Failure::Deadline { stage: "queued", limit: limit / 2 }));
    assert!(within(SOON, || knobs.free_slots.load(SeqCst) == 1).await);
}

#[tokio::test]
async fn cancel_five_retry_five_equals_solo() {
    let (scheduler, _) = start(Fake::hashing(limits(3)), config());
    let handle = scheduler.handle();
    let solo = finish(handle.submit(request("same", 40)).unwrap()).await.unwrap();
    let cancelled: Vec<_> = (0..5).map(|_| handle.submit(request("same", 40)).unwrap()).collect();
    drop(cancelled);
    let retried: Vec<_> = (0..5).map(|_| handle.submit(request("same", 40)).unwrap()).collect();
    for outcome in join_all(retried.into_iter().map(finish)).await {
        assert_eq!(outcome.unwrap(), solo);
    }
}

#[tokio::test]
async fn an_idle_engine_thread_keeps_its_heart_beating() {
    let (scheduler, _) = start(Fake::hashing(limits(1)), config());
    let handle = scheduler.handle();
    tokio::time::sleep(Duration::from_millis(400)).await;
    let (phase, age) = handle.status().phase();
    assert_eq!(phase, "idle");
    assert!(age < Duration::from_millis(350), "last beat {age:?} ago");
}

#[tokio::test]
async fn shutdown_lets_answers_finish_and_takes_no_more() {
    let (scheduler, knobs) = start(Fake::hashing(limits(1)), config());
    knobs.step_ms.store(1, SeqCst);
    let handle = scheduler.handle();
    let running: Vec<_> = (0..3).map(|_| handle.submit(request("x", 20)).unwrap()).collect();
    let ended = tokio::task::spawn_blocking(move || scheduler.shutdown(SOON));
    for outcome in join_all(running.into_iter().map(finish)).await {
        assert_eq!(outcome.unwrap().2.completion, 20);
    }
    assert!(ended.await.unwrap());
    assert_eq!(handle.submit(request("x", 1)).err(), Some(SubmitError::Down(Failure::ShuttingDown)));
}

#[tokio::test]
async fn requests_beyond_the_receipts_limits_never_take_a_seat() {
    let (scheduler, _) = start(Fake::hashing(limits(1)), config());
    let handle = scheduler.handle();
    let mut outside = request("x", 1);
    outside.prompt = vec![VOCAB as u32];
    for bad in [request("", 1), request("x", 0), request(&"x".repeat(250), 7), outside] {
        assert!(matches!(handle.submit(bad), Err(SubmitError::Invalid { .. })));
    }
    assert_eq!(handle.free_seats(), handle.total_seats());
    assert!(finish(handle.submit(request(&"x".repeat(250), 6)).unwrap()).await.is_ok());
}
