use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::contract::{Keys, Op, Query, Store, StoreExt as _, Txn};
use crate::testing::{ManualClock, MemoryStore};

fn empty() -> MemoryStore {
    MemoryStore::new(Arc::new(ManualClock::new()))
}

async fn dump(store: &MemoryStore) -> (Vec<u8>, Summary) {
    let mut file = Vec::new();
    let summary = export(store, &mut file, &mut |_| {}).await.unwrap();
    (file, summary)
}

async fn load(store: &MemoryStore, file: &[u8], onto: Onto) -> Result<Summary, ImportError> {
    import(store, &mut Cursor::new(file.to_vec()), onto, &mut |_| {}).await
}

/// Keys created in another order than theirs, changed, deleted, in one transaction, and leased.
async fn filled() -> MemoryStore {
    let store = empty();
    for key in ["m", "z", "a", "b", "c"] {
        store.put(key, format!("value of {key}")).await.unwrap();
    }
    let both = Txn::new().then(Op::put("y", "1")).then(Op::put("x", "2"));
    store.txn(both).await.unwrap();
    store.put("z", "").await.unwrap();
    store.put("gone", "1").await.unwrap();
    store.delete(Keys::one("gone")).await.unwrap();
    store.put(vec![0xff, 0, 10], vec![b'v'; 200_000]).await.unwrap();
    let (lease, _) = store.grant(Duration::from_mins(1)).await.unwrap();
    store.put_leased("lock", "me", lease).await.unwrap();
    store
}

#[tokio::test]
async fn there_and_back_is_the_same_file() {
    let (file, summary) = dump(&filled().await).await;
    assert_eq!(summary, Summary { keys: 8, leased: 1 });
    let target = empty();
    assert_eq!(load(&target, &file, Onto::Empty).await.unwrap().keys, 8);
    let (again, _) = dump(&target).await;
    assert!(again == file);
    assert_eq!(target.get("z").await.unwrap().unwrap().value.as_ref(), b"");
    assert_eq!(target.get("lock").await.unwrap(), None);
}

/// A store may be shared: what is not ours is neither exported nor counted.
#[tokio::test]
async fn keys_of_others_are_left_out() {
    let store = filled().await;
    store.put("/ours/a", "1").await.unwrap();
    store.put("/ours/b", "2").await.unwrap();
    let mut file = Vec::new();
    let ours = Keys::prefix("/ours/");
    let summary = export_keys(&store, ours, &mut file, &mut |_| {}).await.unwrap();
    assert_eq!(summary, Summary { keys: 2, leased: 0 });
    let target = empty();
    load(&target, &file, Onto::Empty).await.unwrap();
    assert_eq!(target.range(Query::keys(Keys::ALL)).await.unwrap().kvs.len(), 2);
}

#[tokio::test]
async fn the_order_of_creation_is_kept() {
    let (file, _) = dump(&filled().await).await;
    let target = empty();
    load(&target, &file, Onto::Empty).await.unwrap();
    let mut kvs = target.range(Query::keys(Keys::ALL)).await.unwrap().kvs;
    kvs.sort_by_key(|kv| (kv.created, kv.key.clone()));
    let names: Vec<_> = kvs.iter().map(|kv| kv.key.escape_ascii().to_string()).collect();
    assert_eq!(names, ["m", "z", "a", "b", "c", "x", "y", r"\xff\x00\n"]);
}

#[tokio::test]
async fn an_empty_store_makes_an_empty_export() {
    let (file, summary) = dump(&empty()).await;
    assert_eq!(summary, Summary::default());
    assert_eq!(verify(file.as_slice()).unwrap(), 0);
    assert_eq!(file.len(), 32);
}

#[tokio::test]
async fn a_store_with_keys_is_refused_unless_forced() {
    let (file, _) = dump(&filled().await).await;
    let target = empty();
    target.put("a", "mine").await.unwrap();
    target.put("mine", "mine").await.unwrap();
    let error = load(&target, &file, Onto::Empty).await.unwrap_err();
    assert!(matches!(error, ImportError::NotEmpty { keys: 2 }), "{error}");
    assert_eq!(target.get("a").await.unwrap().unwrap().value.as_ref(), b"mine");
    load(&target, &file, Onto::Anything).await.unwrap();
    assert_eq!(target.get("a").await.unwrap().unwrap().value.as_ref(), b"value of a");
    assert_eq!(target.get("mine").await.unwrap().unwrap().value.as_ref(), b"mine");
}

#[tokio::test]
async fn every_cut_and_every_flipped_byte_is_noticed_and_nothing_written() {
    let store = empty();
    store.put("a", "1").await.unwrap();
    store.put("b", "2").await.unwrap();
    let (file, _) = dump(&store).await;
    for length in 0..file.len() {
        let error = verify(file.get(..length).unwrap()).unwrap_err();
        let clear = matches!(error, FormatError::Truncated { .. } | FormatError::NotAnExport);
        assert!(clear, "cut at {length}: {error}");
    }
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 0x10;
        let target = empty();
        let result = load(&target, &damaged, Onto::Empty).await;
        assert!(matches!(result, Err(ImportError::Format(_))), "flipped byte {at}: {result:?}");
        assert_eq!(target.range(Query::keys(Keys::ALL)).await.unwrap().count, 0);
    }
    let mut longer = file.clone();
    longer.push(0);
    assert!(matches!(verify(longer.as_slice()), Err(FormatError::Damaged { .. })));
}

#[test]
fn other_files_and_newer_ones_are_named_for_what_they_are() {
    assert!(matches!(verify(&b"PK\x03\x04 something else"[..]), Err(FormatError::NotAnExport)));
    let mut newer = b"HFEXPORT\x02\0\0\0".to_vec();
    newer.extend_from_slice(&crc32c::crc32c(&newer).to_le_bytes());
    let error = verify(newer.as_slice()).unwrap_err();
    assert!(matches!(error, FormatError::Newer { found: 2 }), "{error}");
}

/// The bytes that docs/format/store-export.md shows.
#[tokio::test]
async fn the_documented_example_is_what_is_written() {
    let store = empty();
    store.put("k", "v1").await.unwrap();
    let (file, _) = dump(&store).await;
    let hex: Vec<String> = file.iter().map(|byte| format!("{byte:02x}")).collect();
    let document = include_str!("../../../../docs/format/store-export.md");
    let (_, example) = document.split_once("## Example").unwrap();
    let shown: String = example
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter_map(|line| line.split('|').next())
        .flat_map(str::chars)
        .filter(|char| !char.is_whitespace())
        .collect();
    assert_eq!(hex.concat(), shown);
}
