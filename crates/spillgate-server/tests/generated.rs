//! The committed code of Envoy's protocol is what its files generate.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

use std::fs;
use std::path::{Path, PathBuf};

use tonic_prost_build::FileDescriptorSet;

const FILES: &str = "envoy/service/ratelimit/v3/rls.proto";
/// Writes the code anew instead of comparing.
const WRITE: &str = "SPILLGATE_WRITE_PROTO";

#[test]
fn the_committed_code_is_fresh() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = crate_root.join("src/listener/envoy/proto");
    let described = protox::compile([FILES], [crate_root.join("proto")]).unwrap();
    let fresh = std::env::temp_dir().join(format!("spillgate-proto-{}", std::process::id()));
    fs::create_dir_all(&fresh).unwrap();
    generate(described, &fresh);
    if std::env::var_os(WRITE).is_some() {
        for (name, bytes) in contents(&fresh) {
            fs::write(committed.join(name), bytes).unwrap();
        }
    }
    let names =
        |folder: &Path| contents(folder).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&committed), names(&fresh));
    for ((name, committed), (_, fresh)) in contents(&committed).iter().zip(contents(&fresh)) {
        assert!(
            *committed == fresh,
            "{} is stale: run this test with {WRITE}=1 and commit what it writes",
            name.display()
        );
    }
    fs::remove_dir_all(&fresh).unwrap();
}

fn generate(mut described: FileDescriptorSet, folder: &Path) {
    described.file.iter_mut().for_each(|file| file.source_code_info = None);
    let mut reflected = Vec::new();
    prost::Message::encode(&described, &mut reflected).unwrap();
    fs::write(folder.join("reflected.bin"), reflected).unwrap();

    take_values_as_bytes(&mut described);
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .disable_comments(["."])
        .out_dir(folder)
        .include_file("all.rs")
        .compile_fds(described)
        .unwrap();
}

/// Envoy sends what a header holds, be it UTF-8 or not, and admits whatever is answered with an
/// error: so values must be any bytes. On the wire both are the same.
fn take_values_as_bytes(described: &mut FileDescriptorSet) {
    let messages = described.file.iter_mut().flat_map(|file| &mut file.message_type);
    let nested = messages.flat_map(|message| &mut message.nested_type);
    let mut entries = nested.filter(|message| message.name() == "Entry");
    let entry = entries.next().expect("a descriptor has entries");
    let value = entry.field.iter_mut().find(|field| field.name() == "value");
    value.expect("an entry has a value").set_type(prost_types::field_descriptor_proto::Type::Bytes);
}

/// The files of a folder by name.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut contents: Vec<(PathBuf, Vec<u8>)> =
        entries.map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap())).collect();
    contents.sort();
    contents
}
