//! A server in front of Redis that has no memory left for the fleet's record: it answers OOM to each call with a key of the
//! record, and passes all others on.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

/// Starts the server in front of the one on this port, and returns its port. It runs until the process ends.
pub fn before(port: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(client, port));
        }
    });
    own
}

/// Answers the calls of one client in order, until it leaves.
fn serve(client: TcpStream, port: u16) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut calls, mut replies) = (BufReader::new(&client), BufReader::new(&server));
    loop {
        let call = value(&mut calls)?;
        let is_of_record = call.windows(RECORD.len()).any(|part| part == RECORD);
        if is_of_record {
            (&client).write_all(OOM)?;
        } else {
            (&server).write_all(&call)?;
            (&client).write_all(&value(&mut replies)?)?;
        }
    }
}

/// Reads one value with all that belongs to it, as it was sent.
fn value(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    let mut missing = 1;
    while missing > 0 {
        missing -= 1;
        let begin = read.len();
        if from.read_until(b'\n', &mut read)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let number = std::str::from_utf8(&read[begin + 1..])
            .ok()
            .and_then(|it| it.trim().parse::<i64>().ok());
        let number = u64::try_from(number.unwrap_or(0)).unwrap_or(0);
        match read[begin] {
            b'$' | b'=' if read[begin + 1] != b'-' => {
                from.take(number + 2).read_to_end(&mut read)?;
            }
            b'*' | b'~' | b'>' => missing += number,
            b'%' => missing += 2 * number,
            _ => {}
        }
    }
    Ok(read)
}

const RECORD: &[u8] = b"{fleet:";
const OOM: &[u8] = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";
