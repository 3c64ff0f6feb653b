//! Appending, crashing and tampering.

use super::*;
use crate::canon::sha256_hex;
use crate::policy::Policy;
use crate::schema::Receipt;
use crate::testkit;
use proptest::prelude::*;

fn judged(batch: u32) -> Entry {
    let mut receipt: Receipt = testkit::good();
    receipt.tuple.batch = batch;
    Entry::Step(receipt.judged(&Policy::embedded()))
}

struct Kit {
    dir: tempfile::TempDir,
    signer: Signer,
    store: Store,
}

impl Kit {
    fn path(&self) -> PathBuf {
        self.dir.path().join(RECEIPTS_FILE)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    fn append(&mut self, entry: Entry) -> Record {
        self.store.append(entry, &self.signer).unwrap()
    }
}

/// A store of three receipts: two steps and a kernel between them.
fn three() -> Kit {
    let dir = tempfile::tempdir().unwrap();
    let signer = Signer::open_or_create(dir.path()).unwrap();
    let store = Store::open(dir.path());
    let mut kit = Kit { dir, signer, store };
    kit.append(judged(8));
    kit.append(Entry::Kernel(testkit::kernel()));
    kit.append(judged(16));
    kit
}

#[test]
fn what_is_appended_is_listed_linked_and_sound() {
    let kit = three();
    let records = kit.store.list().unwrap();
    assert_eq!(records.len(), 3);
    assert_eq!(records[0].sealed.seal.prev, GENESIS);
    assert_eq!(records[2].sealed.seal.prev, records[1].id);
    assert_eq!(kit.store.verify().unwrap(), Report { receipts: 3, findings: vec![], torn_bytes: 0 });
    let tuple = records[0].entry().step().unwrap().tuple.id();
    assert_eq!(kit.store.latest(&tuple).unwrap().unwrap(), records[0]);
    assert_eq!(kit.store.latest("no such").unwrap(), None);
    assert_eq!(kit.store.find(records[1].short_id()).unwrap(), records[1]);
    assert!(matches!(kit.store.find(""), Err(StoreError::Id { matches: 3, .. })));
}

#[test]
fn the_newest_of_a_tuple_is_the_latest() {
    let mut kit = three();
    let newest = kit.append(judged(8));
    let tuple = newest.entry().step().unwrap().tuple.id();
    assert_eq!(kit.store.latest(&tuple).unwrap().unwrap().index, 3);
}

#[test]
fn an_unjudged_or_inexact_receipt_is_not_stored() {
    let mut kit = three();
    let entry = Entry::Step(testkit::good());
    assert!(matches!(kit.store.append(entry, &kit.signer), Err(StoreError::Unjudged)));
    let mut wide = testkit::kernel();
    wide.bytes = 1 << 53;
    let refused = kit.store.append(Entry::Kernel(wide), &kit.signer).unwrap_err().to_string();
    assert!(refused.contains("entry.kernel.bytes"), "{refused}");
    assert_eq!(kit.store.list().unwrap().len(), 3);
}

#[test]
fn two_writers_keep_one_chain() {
    let kit = three();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut store = Store::open(kit.dir.path());
                for _ in 0..5 {
                    store.append(Entry::Kernel(testkit::kernel()), &kit.signer).unwrap();
                }
            });
        }
    });
    let report = kit.store.verify().unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
    assert_eq!(report.receipts, 23);
}

/// A crash at any byte of the fourth append loses nothing that was acknowledged.
#[test]
fn a_torn_append_is_recovered_at_every_length() {
    let kit = three();
    let (before, head) = (kit.bytes(), fs::read(kit.dir.path().join(HEAD_FILE)).unwrap());
    let mut full = fourth_line(&kit);
    full.pop(); // the newline
    let cuts = (0..full.len()).step_by(full.len() / 40).chain([full.len() - 1, full.len()]);
    for cut in cuts {
        fs::write(kit.path(), [&before[..], &full[..cut]].concat()).unwrap();
        fs::write(kit.dir.path().join(HEAD_FILE), &head).unwrap();
        assert_eq!(kit.store.list().unwrap().len(), 3, "a torn end is not a receipt");
        assert_eq!(kit.store.verify().unwrap().torn_bytes, cut);
        let record = Store::open(kit.dir.path()).append(judged(32), &kit.signer).unwrap();
        assert_eq!(record.index, if cut == full.len() { 4 } else { 3 }, "cut at {cut}");
        assert!(kit.store.verify().unwrap().is_sound());
        assert!(kit.bytes().starts_with(&before));
    }
    let aside = fs::read(kit.dir.path().join(TORN_FILE)).unwrap();
    assert!(aside.windows(20).any(|w| w == &full[..20]), "torn bytes are kept aside");
}

/// The bytes of a fourth line, without leaving it in the store.
fn fourth_line(kit: &Kit) -> Vec<u8> {
    let before = kit.bytes();
    let head = fs::read(kit.dir.path().join(HEAD_FILE)).unwrap();
    Store::open(kit.dir.path()).append(judged(64), &kit.signer).unwrap();
    let line = kit.bytes()[before.len()..].to_vec();
    fs::write(kit.path(), before).unwrap();
    fs::write(kit.dir.path().join(HEAD_FILE), head).unwrap();
    line
}

#[test]
fn a_crash_between_line_and_head_is_recovered() {
    let mut kit = three();
    let head = fs::read(kit.dir.path().join(HEAD_FILE)).unwrap();
    kit.append(judged(32));
    fs::write(kit.dir.path().join(HEAD_FILE), head).unwrap();
    assert_eq!(kit.store.list().unwrap().len(), 4);
    assert_eq!(Store::open(kit.dir.path()).append(judged(64), &kit.signer).unwrap().index, 4);
    assert!(kit.store.verify().unwrap().is_sound());
}

#[test]
fn acknowledged_lines_that_are_gone_are_missed_and_nothing_is_appended() {
    let kit = three();
    let bytes = kit.bytes();
    for cut in [1, 100] {
        fs::write(kit.path(), &bytes[..bytes.len() - cut]).unwrap();
        let report = kit.store.verify().unwrap();
        assert_eq!(report.findings[0].index, 2, "{:?}", report.findings);
        let err = Store::open(kit.dir.path()).append(judged(64), &kit.signer).unwrap_err();
        assert!(matches!(err, StoreError::Damaged { .. }), "{err}");
        assert_eq!(kit.bytes().len(), bytes.len() - cut);
    }
}

/// Flips bits all over the store: each is found, and the finding names the receipt it is in.
#[test]
fn a_flipped_byte_anywhere_is_named_by_receipt_and_field() {
    let kit = three();
    let bytes = kit.bytes();
    let head = fs::read_to_string(kit.dir.path().join(HEAD_FILE)).unwrap();
    let ids: Vec<String> = kit.store.list().unwrap().into_iter().map(|r| r.id).collect();
    let (mut unnamed, mut flips) = (0usize, 0usize);
    for at in (0..bytes.len()).step_by(29).chain([bytes.len() - 1]) {
        for mask in [0x01u8, 0x20, 0x80] {
            let mut forged = bytes.clone();
            forged[at] ^= mask;
            let (_, report) = examine(&forged, Some(&head));
            assert!(!report.is_sound(), "byte {at} ^ {mask:#x} was not found");
            let finding = &report.findings[0];
            let line = bytes[..at].iter().filter(|&&b| b == b'\n').count();
            assert_eq!(finding.index, line, "byte {at} ^ {mask:#x}: {finding}");
            flips += 1;
            unnamed += usize::from(finding.field == "(line)");
        }
        let mut forged = bytes.clone();
        forged[at] ^= 1;
        if forged[at] != b'\n' && bytes[at] != b'\n' {
            let (_, report) = examine(&forged, Some(&head));
            let line = bytes[..at].iter().filter(|&&b| b == b'\n').count();
            assert_eq!(report.findings[0].id, ids[line], "byte {at}: the sealed id is named");
            assert!(!examine(&forged, None).1.is_sound(), "byte {at} without a head");
        }
    }
    // Braces and newlines belong to no field; nearly every byte does.
    assert!(unnamed * 20 < flips, "{unnamed} flips named no field");
}

#[test]
fn reordered_deleted_and_inserted_lines_are_named() {
    let kit = three();
    let bytes = kit.bytes();
    let head = fs::read_to_string(kit.dir.path().join(HEAD_FILE)).unwrap();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|&b| b == b'\n').collect();
    let found = |order: &[usize]| {
        let forged: Vec<u8> = order.iter().flat_map(|&i| lines[i].to_vec()).collect();
        examine(&forged, Some(&head)).1.findings
    };
    assert!(found(&[0, 1, 2]).is_empty());
    let reordered = found(&[0, 2, 1]);
    assert!(reordered[0].what.contains("out of order, this one follows receipt 2"), "{}", reordered[0]);
    assert_eq!((reordered[0].index, reordered[0].field.as_str()), (1, "seal.prev"));
    assert!(found(&[0, 2])[0].what.contains("broken chain"));
    assert!(found(&[1, 2])[0].what.contains("broken chain"));
    assert!(found(&[0, 0, 1, 2])[0].what.contains("broken chain"));
    assert!(found(&[0, 1])[0].what.contains("3 receipts were acknowledged, 2 are there"));
}

#[test]
fn a_changed_head_is_named() {
    let kit = three();
    let path = kit.dir.path().join(HEAD_FILE);
    let head = fs::read(&path).unwrap();
    for at in 0..head.len() {
        let mut forged = head.clone();
        forged[at] ^= 1;
        fs::write(&path, &forged).unwrap();
        let report = kit.store.verify().unwrap();
        assert!(!report.is_sound(), "byte {at}");
        assert_eq!(report.findings[0].field, "receipts.head");
    }
}

/// A newer failure cannot be cut off with the record that it was there.
#[test]
fn a_store_without_its_head_is_damage() {
    let kit = three();
    let bytes = kit.bytes();
    assert!(examine(&bytes, Some(&fs::read_to_string(kit.dir.path().join(HEAD_FILE)).unwrap())).1.is_sound());
    let (_, report) = examine(&bytes, None);
    assert_eq!(report.findings[0].field, "receipts.head");
    let first = bytes.iter().position(|b| *b == b'\n').unwrap() + 1;
    assert!(!examine(&bytes[..first], None).1.is_sound());
    assert!(examine(b"", None).1.is_sound());
}

#[test]
fn an_absent_store_is_empty_and_a_file_of_junk_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    assert!(store.list().unwrap().is_empty());
    fs::write(dir.path().join(RECEIPTS_FILE), b"{}\n\n[[[\xff\n").unwrap();
    // The three lines, and the head that should stand beside them.
    assert_eq!(store.verify().unwrap().findings.len(), 4);
    assert!(store.list().unwrap_err().to_string().contains("and 3 more"));
    assert_eq!(parse_line(b"{}").unwrap_err().field(), "(line)");
    assert_eq!(sha256_hex(b"").len(), 64);
}

proptest! {
    #[test]
    fn any_bytes_give_a_line_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(parse_line(&bytes).is_err());
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (records, _) = examine(&bytes, Some(&text));
        prop_assert!(records.is_empty());
    }

    /// A real line with a piece cut out, doubled or overwritten is never taken for a whole one.
    #[test]
    fn a_mangled_line_is_an_error_or_has_a_fault(at in 0usize..1 << 16, len in 1usize..64, junk in any::<u8>()) {
        let mut receipt = testkit::kernel();
        receipt.warnings = vec!["a \"quoted\" \\ warning \u{e9}".to_owned()];
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::open_or_create(dir.path()).unwrap();
        let line = Sealed::new(Entry::Kernel(receipt), GENESIS, &signer).unwrap().line().unwrap();
        let (at, len) = (at % (line.len() - 64), len);
        let mut overwritten = line.clone();
        overwritten[at..at + len].fill(junk);
        let cut = [&line[..at], &line[at + len..]].concat();
        let doubled = [&line[..at + len], &line[at..]].concat();
        for mangled in [overwritten, cut, doubled] {
            if mangled == line {
                continue;
            }
            let caught = match parse_line(&mangled) {
                Err(error) => !error.field().is_empty(),
                Ok(read) => read.sealed.faults().is_ok_and(|faults| !faults.is_empty()),
            };
            prop_assert!(caught);
        }
    }
}
