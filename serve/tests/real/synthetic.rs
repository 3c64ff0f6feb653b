//! Made-up weights are qualified as what they are, and nothing they give can start a server.

use receipts::{ClauseName, Entry, Kind, Signer, Store, Verdict};

use crate::home::{Home, steps};

#[test]
fn a_synthetic_checkpoint_gives_a_synthetic_receipt_that_never_admits() {
    let home = Home::empty();
    std::fs::create_dir(home.path().join("made-up")).expect("a folder");
    let file = home.file("made-up/model.safetensors");
    let made = home.run(&["synth", "whatis-9m", "--layers", "4", "-o", &file]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let qualified = home.run(&["qualify", &file, "--batch", "1"]);
    assert_eq!(qualified.code, Some(1), "{}\n{}", qualified.out, qualified.err);
    let mut store = Store::open(&home.path().join("receipts"));
    let receipts = steps(&store);
    assert_eq!(receipts.len(), 1);
    let receipt = &receipts[0];
    assert_eq!((receipt.kind, receipt.tuple.model.as_str()), (Kind::Synthetic, "made-up"));
    let Some(Verdict::Fail { clauses }) = &receipt.verdict else { panic!("{:?}", receipt.verdict) };
    assert_eq!(clauses[0].name, ClauseName::KindMeasured, "{clauses:?}");
    let serve = ["serve", &file, "--port", "0", "--batch", "1"];
    home.refused(&serve, &["is synthetic, not measured", &format!("sparkpipe qualify {file}")]);
    // A stated pass changes nothing: the kind decides before the verdict, and the verdict is worked out again.
    let mut forged = receipt.clone();
    forged.verdict = Some(Verdict::Pass);
    let signer = Signer::open_or_create(&home.path().join("keys")).expect("the key that qualify made");
    store.append(Entry::Step(forged), &signer).expect("appended");
    home.refused(&serve, &["is synthetic, not measured"]);
}
