//! The RESP door: whatever speaks to Redis can ask here. Requests are decoded, those that came together
//! are judged together, and answered in their order. One client's mistake ends no other's connection.

mod answer;
mod batch;
mod command;
mod connection;
mod frame;
mod question;
mod received;
mod reply;
mod session;

pub(crate) use connection::Resp;

#[cfg(test)]
#[path = "../../../../fuzz/bodies/resp.rs"]
mod fuzz_body;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_the_fuzzer_found_stays_found() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/resp");
        let mut replayed = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            fuzz_body::holds(&std::fs::read(entry.unwrap().path()).unwrap());
            replayed += 1;
        }
        assert!(replayed > 20, "{replayed} inputs are not the whole corpus");
    }
}
