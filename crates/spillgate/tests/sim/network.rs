//! The simulated network: connections from each process to each server, with delays and faults. A machine
//! behind it is up, paused, or gone.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use spillgate_redis::simulation::Dial;
use spillgate_testkit::Reply;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, sleep_until};

use super::keyspace::Words;
use super::ledger::Ledger;
use super::program;
use super::server::{Server, Session};
use super::support::random::Random;

/// All connections, and the machines at their ends.
pub(crate) struct Network {
    machines: BTreeMap<String, Machine>,
    /// By process and machine. Connections without a fault have no entry.
    lines: RefCell<BTreeMap<(u32, String), Line>>,
    random: RefCell<Random>,
    changed: Notify,
    connections: Cell<u64>,
    pub(crate) ledger: Rc<Ledger>,
}

/// The machine of a server.
pub(crate) struct Machine {
    pub(crate) server: RefCell<Server>,
    is_up: Cell<bool>,
    is_paused: Cell<bool>,
    connections: RefCell<Vec<AbortHandle>>,
}

/// The fault of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    /// Bytes take this much longer each way.
    pub(crate) later_ms: u64,
    /// Nothing gets through. Bytes arrive once this ends, as TCP would send them again.
    pub(crate) is_held: bool,
    pub(crate) refuses: bool,
    /// Connections made before this one lose all bytes, and neither side is informed.
    pub(crate) forgotten_before: u64,
    /// The fate of the next call of a script.
    pub(crate) next_call: NextCall,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NextCall {
    #[default]
    Answered,
    CutOffBefore,
    CutOffAfter,
    CutInAnswer(usize),
}

/// One connection: its process, its machine, and its number.
#[derive(Clone, Debug)]
struct Ends {
    process: u32,
    machine: String,
    number: u64,
}

type Dialled = (String, oneshot::Sender<io::Result<DuplexStream>>);

impl Network {
    pub(crate) fn new(
        servers: Vec<(String, Server)>,
        seed: u64,
        ledger: &Rc<Ledger>,
    ) -> Rc<Network> {
        let machine = |server| Machine {
            server: RefCell::new(server),
            is_up: Cell::new(true),
            is_paused: Cell::new(false),
            connections: RefCell::default(),
        };
        Rc::new(Network {
            machines: servers.into_iter().map(|(name, server)| (name, machine(server))).collect(),
            lines: RefCell::default(),
            random: RefCell::new(Random::new(seed)),
            changed: Notify::new(),
            connections: Cell::new(0),
            ledger: Rc::clone(ledger),
        })
    }

    /// The product's connections use this network from now on.
    pub(crate) fn dial(self: &Rc<Self>) -> Dial {
        let (dials, mut dialled) = mpsc::unbounded_channel::<Dialled>();
        let network = Rc::clone(self);
        spawn_local(async move {
            while let Some((host, answer)) = dialled.recv().await {
                spawn_local(connect(Rc::clone(&network), host, answer));
            }
        });
        Box::new(move |host, _port| {
            let (answer, answered) = oneshot::channel();
            let _ = dials.send((host.to_owned(), answer));
            Box::pin(async move { answered.await.unwrap_or_else(|_| Err(connection_refused())) })
        })
    }

    pub(crate) fn machine(&self, name: &str) -> &Machine {
        &self.machines[name]
    }

    pub(crate) fn server<T>(&self, name: &str, with: impl FnOnce(&mut Server) -> T) -> T {
        with(&mut self.machine(name).server.borrow_mut())
    }

    /// Sets the fault of a process's connections to a machine.
    pub(crate) fn set_line(&self, process: u32, machine: &str, line: Line) {
        let key = (process, machine.to_owned());
        let mut lines = self.lines.borrow_mut();
        let forgotten_before = lines.get(&key).map_or(0, |known| known.forgotten_before);
        lines.insert(key, Line { forgotten_before, ..line });
        drop(lines);
        self.note_silence(Some(process), machine, line.is_held);
        self.changed.notify_waiters();
    }

    /// Existing connections lose all bytes from now on; new ones work.
    pub(crate) fn forget_lines(&self, process: u32, machine: &str) {
        let mut lines = self.lines.borrow_mut();
        let line = lines.entry((process, machine.to_owned())).or_default();
        line.forgotten_before = self.connections.get() + 1;
    }

    /// Removes all faults. Dropped connections stay dropped.
    pub(crate) fn fix_lines(&self) {
        for ((process, machine), line) in self.lines.borrow_mut().iter_mut() {
            self.note_silence(Some(*process), machine, false);
            *line = Line { forgotten_before: line.forgotten_before, ..Line::default() };
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn pause(&self, machine: &str, is_paused: bool) {
        self.machine(machine).is_paused.set(is_paused);
        self.note_silence(None, machine, is_paused);
        self.changed.notify_waiters();
    }

    fn note_silence(&self, process: Option<u32>, machine: &str, is_silent: bool) {
        let silences = &self.ledger.silences;
        if is_silent {
            silences.begin(process, machine, self.ledger.now_ms());
        } else {
            silences.end(process, machine);
        }
    }

    /// The server is gone, with its connections.
    pub(crate) fn kill(&self, machine: &str) {
        self.note_silence(None, machine, false);
        let machine = self.machine(machine);
        machine.is_up.set(false);
        machine.is_paused.set(false);
        machine.connections.take().iter().for_each(AbortHandle::abort);
    }

    pub(crate) fn start(&self, machine: &str, saved: bool) {
        self.server(machine, |server| server.restart(saved));
        self.machine(machine).is_up.set(true);
    }

    fn line(&self, process: u32, machine: &str) -> Line {
        let lines = self.lines.borrow();
        lines.get(&(process, machine.to_owned())).copied().unwrap_or_default()
    }

    fn delay(&self, line: Line) -> Duration {
        Duration::from_millis(self.random.borrow_mut().below(3) + line.later_ms)
    }

    /// Returns the fate of this call, once.
    fn next_call(&self, ends: &Ends) -> NextCall {
        let mut lines = self.lines.borrow_mut();
        let line = lines.get_mut(&(ends.process, ends.machine.clone()));
        line.map(|line| std::mem::take(&mut line.next_call)).unwrap_or_default()
    }
}

/// `one.p3` is the machine `one`, as process 3 reaches it.
async fn connect(
    network: Rc<Network>,
    host: String,
    answer: oneshot::Sender<io::Result<DuplexStream>>,
) {
    let (machine, process) = host.split_once(".p").expect("hosts are named so");
    let (machine, process) = (machine.to_owned(), process.parse().expect("a number"));
    sleep(network.delay(network.line(process, &machine))).await;
    loop {
        let changed = network.changed.notified();
        if !network.line(process, &machine).is_held {
            break;
        }
        changed.await;
    }
    if !network.machine(&machine).is_up.get() || network.line(process, &machine).refuses {
        let _ = answer.send(Err(connection_refused()));
        return;
    }
    let number = network.connections.get() + 1;
    network.connections.set(number);
    let (theirs, ours) = tokio::io::duplex(BUFFER);
    let ends = Ends { process, machine: machine.clone(), number };
    let serving = spawn_local(serve(Rc::clone(&network), ends, ours)).abort_handle();
    let mut connections = network.machine(&machine).connections.borrow_mut();
    connections.retain(|connection| !connection.is_finished());
    connections.push(serving);
    let _ = answer.send(Ok(theirs));
}

/// Serves one connection: bytes arrive after a delay and are executed, and the reply arrives after another.
async fn serve(network: Rc<Network>, ends: Ends, mut stream: DuplexStream) {
    let machine = network.machine(&ends.machine);
    let session = Session::of(ends.process);
    let (mut arriving, mut leaving) = (VecDeque::new(), VecDeque::new());
    let (mut unread, mut buffer, mut is_closed) = (Vec::new(), vec![0; BUFFER], false);
    loop {
        let line = network.line(ends.process, &ends.machine);
        let is_forgotten = ends.number < line.forgotten_before;
        let first = |queue: &VecDeque<(Instant, Vec<u8>, Instant)>, held: bool| {
            queue.front().filter(|_| !held).map(|(due, ..)| *due)
        };
        let next_in = first(&arriving, line.is_held || machine.is_paused.get());
        let next_out = first(&leaving, line.is_held);
        if is_closed && arriving.is_empty() {
            return;
        }
        tokio::select! {
            biased;
            read = stream.read(&mut buffer), if !is_closed => match read {
                Ok(length @ 1..) if !is_forgotten => {
                    queue(&mut arriving, network.delay(line), buffer[..length].to_vec());
                }
                Ok(1..) => {}
                _ => is_closed = true,
            },
            () = until(next_in) => {
                let (_, bytes, sent) = arriving.pop_front().expect("it was due");
                unread.extend(bytes);
                while let Some(words) = next_command(&mut unread) {
                    let (mut reply, ends_here) = match call(&network, &ends, &session, &words, sent) {
                        Called::Answered(reply) => (reply, false),
                        Called::Cut => return,
                        Called::AnsweredInPart(reply) => (reply, true),
                    };
                    if ends_here {
                        let _ = stream.write_all(&reply).await;
                        return;
                    }
                    if !is_forgotten {
                        queue(&mut leaving, network.delay(line), std::mem::take(&mut reply));
                    }
                }
            }
            () = until(next_out) => {
                let (_, bytes, _) = leaving.pop_front().expect("it was due");
                network.ledger.silences.bytes_arrived(ends.process, &ends.machine, network.ledger.now_ms());
                if !is_forgotten && stream.write_all(&bytes).await.is_err() {
                    is_closed = true;
                }
            }
            () = network.changed.notified() => {}
        }
    }
}

enum Called {
    Answered(Vec<u8>),
    AnsweredInPart(Vec<u8>),
    Cut,
}

/// Executes a command, unless the connection's fault prevents it.
fn call(network: &Network, ends: &Ends, session: &Session, words: &Words, sent: Instant) -> Called {
    let is_call = words[0] == b"EVALSHA" || words[0] == b"EVAL";
    let fate = if is_call { network.next_call(ends) } else { NextCall::Answered };
    let ledger = &network.ledger;
    if fate == NextCall::CutOffBefore {
        ledger.sometimes("a call cut off before it ran");
        return Called::Cut;
    }
    let mut server = network.machine(&ends.machine).server.borrow_mut();
    let done = server.execute(words, session, ledger.now_us());
    drop(server);
    if let Reply::Error(error) = &done.reply {
        ledger.rejected(&ends.machine, ends.process, error);
    }
    if is_call {
        let count: usize = std::str::from_utf8(&words[2]).unwrap().parse().unwrap();
        let (keys, arguments) = words[3..].split_at(count);
        let all = program::executed(keys, arguments.first().map_or(&[], |it| &it[..]), &done.reply);
        if !all.is_empty() {
            ledger.executed(&ends.machine, ends.process, &done, &all, sent);
        }
    }
    let reply = encoded(&done.reply);
    match fate {
        NextCall::CutOffAfter => {
            ledger.sometimes("a reply lost after execution");
            Called::Cut
        }
        NextCall::CutInAnswer(length) => {
            ledger.sometimes("a reply cut in two");
            Called::AnsweredInPart(reply[..length.min(reply.len() - 1)].to_vec())
        }
        _ => Called::Answered(reply),
    }
}

/// Never delivered before earlier bytes.
fn queue(to: &mut VecDeque<(Instant, Vec<u8>, Instant)>, delay: Duration, bytes: Vec<u8>) {
    let sent = Instant::now();
    let due = to.back().map_or(sent, |(due, ..)| *due).max(sent + delay);
    to.push_back((due, bytes, sent));
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Takes the first complete command out: a list of strings.
fn next_command(unread: &mut Vec<u8>) -> Option<Words> {
    let mut at = 0;
    let mut number = |mark: u8| {
        let length = unread[at..].windows(2).position(|pair| pair == b"\r\n")?;
        let line = &unread[at..at + length];
        assert_eq!(line[0], mark, "commands are lists of strings");
        let number: usize = std::str::from_utf8(&line[1..]).unwrap().parse().unwrap();
        let begins = at + length + 2;
        at = begins;
        if mark == b'$' {
            at += number + 2;
        }
        (at <= unread.len()).then_some((number, begins))
    };
    if unread.is_empty() {
        return None;
    }
    let (count, _) = number(b'*')?;
    let places: Vec<(usize, usize)> = (0..count).map(|_| number(b'$')).collect::<Option<_>>()?;
    let words = places.iter().map(|(length, begins)| unread[*begins..begins + length].to_vec());
    let words = words.collect();
    unread.drain(..at);
    Some(words)
}

fn encoded(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Status(text) => format!("+{text}\r\n").into_bytes(),
        Reply::Error(text) => format!("-{text}\r\n").into_bytes(),
        Reply::Integer(number) => format!(":{number}\r\n").into_bytes(),
        Reply::Nil => b"$-1\r\n".to_vec(),
        Reply::Bulk(bytes) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
        Reply::Array(replies) => {
            let head = format!("*{}\r\n", replies.len()).into_bytes();
            replies.iter().fold(head, |all, reply| [all, encoded(reply)].concat())
        }
    }
}

fn connection_refused() -> io::Error {
    io::ErrorKind::ConnectionRefused.into()
}

/// More than a batch of calls, so that no call waits for room.
const BUFFER: usize = 1 << 18;
