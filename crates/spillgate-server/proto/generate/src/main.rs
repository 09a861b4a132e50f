//! Writes the code of Envoy's protocol, which is committed. With `--check` it compares the committed code with what it
//! would write.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io, process};

use tonic_prost_build::FileDescriptorSet;

const FILES: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("it is not in proto/")?;
    let committed = proto.with_file_name("src").join("listener/envoy/proto");
    let described = protox::compile([FILES], [proto])?;
    match env::args().nth(1).as_deref() {
        None => {
            let fresh = generated(described)?;
            fs::remove_dir_all(&committed)?;
            fs::create_dir(&committed)?;
            for (name, bytes) in fresh {
                fs::write(committed.join(name), bytes)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Some("--check") => is_fresh(&generated(described)?, &committed),
        Some(other) => Err(format!("unknown argument {other:?}: write --check, or nothing").into()),
    }
}

/// Files by name.
type Files = BTreeMap<OsString, Vec<u8>>;

fn is_fresh(fresh: &Files, folder: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let committed = contents(folder)?;
    let mut names = committed.keys().chain(fresh.keys());
    let Some(stale) = names.find(|name| committed.get(*name) != fresh.get(*name)) else {
        return Ok(ExitCode::SUCCESS);
    };
    eprintln!(
        "{} is stale: run `cargo run --manifest-path crates/spillgate-server/proto/generate/Cargo.toml`",
        folder.join(stale).display()
    );
    Ok(ExitCode::FAILURE)
}

/// Returns the code.
fn generated(described: FileDescriptorSet) -> Result<Files, Box<dyn Error>> {
    let folder = env::temp_dir().join(format!("spillgate-proto-{}", process::id()));
    generate(described, &folder)?;
    let files = contents(&folder)?;
    fs::remove_dir_all(&folder)?;
    Ok(files)
}

/// Writes the code into a new folder.
fn generate(mut described: FileDescriptorSet, folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir(folder)?;
    described.file.iter_mut().for_each(|file| file.source_code_info = None);
    let mut reflected = Vec::new();
    prost::Message::encode(&described, &mut reflected)?;
    fs::write(folder.join("reflected.bin"), reflected)?;

    take_values_as_bytes(&mut described)?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .disable_comments(["."])
        .out_dir(folder)
        .include_file("all.rs")
        .compile_fds(described)?;
    Ok(())
}

/// Makes the values of descriptors bytes: Envoy sends the values of headers even if they are not UTF-8, and admits a
/// request whose answer is an error. On the wire both types are the same.
fn take_values_as_bytes(described: &mut FileDescriptorSet) -> Result<(), &'static str> {
    let messages = described.file.iter_mut().flat_map(|file| &mut file.message_type);
    let nested = messages.flat_map(|message| &mut message.nested_type);
    let mut entries = nested.filter(|message| message.name() == "Entry");
    let entry = entries.next().ok_or("no message has entries")?;
    let value = entry.field.iter_mut().find(|field| field.name() == "value");
    let value = value.ok_or("an entry has no value")?;
    value.set_type(prost_types::field_descriptor_proto::Type::Bytes);
    Ok(())
}

/// Returns the files of a folder by name.
fn contents(folder: &Path) -> io::Result<Files> {
    let mut contents = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        contents.insert(entry.file_name(), fs::read(entry.path())?);
    }
    Ok(contents)
}
