//! Reads the files that settings name: policy, tokens, secrets, passwords, certificates.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::libc::O_NONBLOCK;

/// Reads a regular file, also through links, of at most `bytes_max` bytes.
///
/// # Errors
///
/// If the file cannot be read, is longer, or is a pipe or a device: these may block the reader, or never end.
pub(crate) fn read(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // Else to open a pipe would wait for its writer. A look at the file before is not enough: it may be replaced since.
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(file)?;
    match opened.metadata()?.is_file() {
        true => bounded(opened, bytes_max),
        false => Err(io::Error::other("is not a regular file")),
    }
}

/// Reads a file of at most `bytes_max` bytes of text, which may be a pipe. Waits for its writer.
///
/// # Errors
///
/// If the file cannot be read, is longer, or is not UTF-8.
pub(crate) fn read_text_or_pipe(file: &Path, bytes_max: u64) -> io::Result<String> {
    text(bounded(File::open(file)?, bytes_max)?)
}

/// Reads a regular file as text. See [`read`].
///
/// # Errors
///
/// As [`read`], and if the file is not UTF-8.
pub(crate) fn read_text(file: &Path, bytes_max: u64) -> io::Result<String> {
    text(read(file, bytes_max)?)
}

/// Returns whether every user of this machine may read a file.
pub(crate) fn is_open_to_all(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

fn bounded(opened: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    opened.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::other(format!("is longer than {bytes_max} bytes"))),
        false => Ok(bytes),
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "is not UTF-8"))
}

/// The longest policy file. A million overrides take about 100 MiB.
pub(crate) const POLICY_BYTES_MAX: u64 = 512 << 20;
/// The longest file of tokens, secrets, passwords or certificates.
pub(crate) const CREDENTIAL_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_regular_files_up_to_the_bound_are_read_also_through_links() {
        let folder = std::env::temp_dir().join(format!("spillgate-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        fs::write(&file, "12345678").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_text(&link, 8).unwrap(), "12345678");
        let why = |file: &Path, bytes_max| read(file, bytes_max).unwrap_err().to_string();
        assert_eq!(why(&file, 7), "is longer than 7 bytes");
        assert_eq!(why(Path::new("/dev/zero"), 7), "is not a regular file");
        assert_eq!(why(&folder, 7), "is not a regular file");
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A look at the file before it is opened would find a regular one, and the pipe would block the reader for ever.
    #[test]
    fn a_pipe_that_takes_the_place_of_a_file_at_any_time_blocks_no_reader() {
        let folder = std::env::temp_dir().join(format!("spillgate-pipes-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [file, pipe, shown] = ["file", "pipe", "shown"].map(|name| folder.join(name));
        fs::write(&file, "12345678").unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::hard_link(&file, &shown).unwrap();
        let (done, reading) = mpsc::channel();
        let read_again = shown.clone();
        std::thread::spawn(move || {
            let reads = (0..20_000).map(|_| read(&read_again, 8));
            done.send(reads.filter(|read| read.is_err()).count())
        });
        let is_over = AtomicBool::new(false);
        let refused = std::thread::scope(|scope| {
            scope.spawn(|| {
                let next = folder.join("next");
                for from in [&pipe, &file].into_iter().cycle() {
                    fs::hard_link(from, &next).unwrap();
                    fs::rename(&next, &shown).unwrap();
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let refused = reading.recv_timeout(Duration::from_secs(10));
            is_over.store(true, Ordering::Relaxed);
            refused.expect("a pipe blocks the reader")
        });
        fs::remove_dir_all(&folder).unwrap();
        assert!((1..20_000).contains(&refused), "{refused} of 20,000 reads met the pipe");
    }
}
