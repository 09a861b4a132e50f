//! The connections to one server.
//!
//! They are made in the background, one at a time, and tested before the first call uses them. Every wait is
//! bounded, and so is the number of calls in flight.
//!
//! Longer than 450 lines because the breaker, the connections and their task change one state together.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use ::redis::{Cmd, RedisResult, Value};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::breaker::Breaker;
use super::failure::{Failure, NotHere};
use super::server::Server;
use super::wire::{Held, Pulse, Wire, WireReply};
use crate::algorithm::Intent;
use crate::calls::program::{Call, Header, Reply};
use crate::calls::script::{self, Script, Scripts};
use crate::counter::PlannedCharge;
use crate::error::Why;
use crate::jitter::jittered;
use crate::limit::{Limit, NamedLimit};
use crate::plan::{RecordAction, Transaction};
use crate::subject::SubjectKey;
use crate::time::Deadline;

/// A set of connections to one server, made again when they break.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) server: Server,
    lines: Box<[ArcSwapOption<Open>]>,
    /// How many connections were opened so far.
    opened: AtomicU64,
    next_line: AtomicUsize,
    /// How long to wait for a connection, and for a byte of a reply.
    timeout: Duration,
    pulse: Arc<Pulse>,
    in_flight: Arc<AtomicUsize>,
    breaker: Mutex<Breaker>,
    /// The circuit breaker is open: calls fail at once, until a new connection has passed its test.
    tripped: AtomicBool,
    /// Whether a task is connecting, or waits to try again.
    connecting: AtomicBool,
    changed: Notify,
    /// The reason why the last attempt to connect failed.
    trouble: Mutex<Option<Why>>,
}

/// A connection that passed its test, and the variant of the scripts that its server accepts.
struct Open {
    wire: Wire,
    scripts: &'static Scripts,
    /// How often a script was sent again after the server had lost it.
    reloads: AtomicU64,
    reloading: tokio::sync::Mutex<()>,
}

/// Whether a call goes to the owner of a slot, or to the server that is taking the slot over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    None,
    Ask,
}

impl Link {
    pub(crate) fn new(server: Server, connections: usize, timeout: Duration) -> Arc<Link> {
        Arc::new_cyclic(|link: &Weak<Link>| {
            let link = Weak::clone(link);
            let on_silence = move || {
                if let Some(link) = link.upgrade() {
                    link.judge(false);
                }
            };
            Link {
                server,
                lines: (0..connections).map(|_| ArcSwapOption::empty()).collect(),
                opened: AtomicU64::new(0),
                next_line: AtomicUsize::new(0),
                timeout,
                pulse: Arc::new(Pulse::new(timeout, on_silence)),
                in_flight: Arc::default(),
                breaker: Mutex::default(),
                tripped: AtomicBool::new(false),
                connecting: AtomicBool::new(false),
                changed: Notify::new(),
                trouble: Mutex::default(),
            }
        })
    }

    /// Waits a moment for the first connection, so that the first decisions are made by the store.
    ///
    /// Returns early if the server cannot be reached.
    pub(crate) async fn warm_up(self: &Arc<Self>) {
        let tried = self.until(|link| {
            (link.any_open().is_some() || link.trouble.lock().is_some()).then_some(())
        });
        // A silent server is an outage, which the first decision finds.
        let _ = Deadline::after(WARM_UP).bound(tried).await;
    }

    /// Runs the script.
    ///
    /// If the caller is dropped before the reply, the call stays in flight. It keeps `held` until the reply comes, or
    /// until the server is found silent.
    pub(crate) async fn run(
        self: &Arc<Self>,
        call: &Call<'_>,
        redirect: Redirect,
        deadline: Deadline,
        held: Held,
    ) -> Result<Reply, Failure> {
        let answer = self.run_unnoted(call, redirect, deadline, held).await;
        let works = answer.as_ref().map_or_else(Failure::shows_work, |_| Some(true));
        if let Some(works) = works {
            // Not after silence, which the connections that found it have counted once for all calls in flight, nor
            // after a caller's own deadline, which says nothing about the server.
            self.judge(works);
        }
        answer
    }

    /// Sends one command that is not the script.
    ///
    /// It ends at its own deadline. Silence neither ends it early nor is measured by it: the server may take
    /// longer for it than for a decision.
    pub(crate) async fn command(
        self: &Arc<Self>,
        command: &Cmd,
        redirect: Redirect,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let _place = self.place_in_flight()?;
        let answer = async {
            let open = self.connection(deadline).await?;
            let sent_at = Instant::now();
            let (packed, commands) = packed(command, redirect);
            let late = || format!("{} did not answer in time", self.server);
            match deadline.bound(open.wire.line.send(&packed, commands)).await {
                Some(answer) => self.classified(&open, answer).map(WireReply::value),
                None if self.pulse.received_since(sent_at) => Err(Failure::too_late(late())),
                None => Err(Failure::Unknown(late().into())),
            }
        };
        let answer = answer.await;
        // Failures count for the breaker, replies do not: a server that answers commands may still fail every
        // decision.
        if matches!(&answer, Err(Failure::Unknown(_) | Failure::NotSent(_))) {
            self.judge(false);
        }
        answer
    }

    /// Opens a separate connection, for diagnosis.
    pub(crate) async fn dial(&self) -> Result<Wire, Failure> {
        self.server.dial().await.map_err(|error| Failure::from_error(&error).unsent())
    }

    /// Drops all connections and makes new ones, because another server may have the role now.
    pub(crate) fn renew(self: &Arc<Self>) {
        self.lines.iter().for_each(|line| line.store(None));
        self.connect();
    }

    /// Returns how many connections were opened so far. While the number stays, so does the server.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Returns whether the circuit breaker is open.
    pub(crate) fn is_tripped(&self) -> bool {
        self.tripped.load(Ordering::Relaxed)
    }

    /// Returns whether any connection is open, or was until it was last used.
    pub(crate) fn is_connected(&self) -> bool {
        self.lines.iter().any(|line| line.load().is_some())
    }

    /// Returns the reason why the last attempt to connect failed.
    pub(crate) fn trouble(&self) -> Option<Why> {
        self.trouble.lock().clone()
    }

    async fn run_unnoted(
        self: &Arc<Self>,
        call: &Call<'_>,
        redirect: Redirect,
        deadline: Deadline,
        held: Held,
    ) -> Result<Reply, Failure> {
        let place = self.place_in_flight()?;
        let open = self.connection(deadline).await?;
        // A caller that gives up leaves its call in flight. So the place goes with the call, and is free only once
        // the reply has come or the connection has ended.
        let mut held_with_place: Held = Some(Box::new((place, held)));
        let held = &mut held_with_place;
        let program = call.encoded();
        let Scripts { decides, leases } = open.scripts;
        let script: &'static Script = if call.is_of_leases { leases } else { decides };
        let by_name = call.command("EVALSHA", &script.sha, &program);
        for _ in 0..RELOADS_AWAITED {
            // Read before the call is sent: a reload that ends while the call is on its way must count as one that
            // came after it.
            let reloads = open.reloads.load(Ordering::Acquire);
            match self.ask(&open, &by_name, redirect, deadline, held).await {
                Err(Failure::NotHere(NotHere::NoScript, _)) => {}
                answered => return answered,
            }
            // After NOSCRIPT, one call sends the whole script, and the other calls wait for it: the script is long.
            let Some(_reloading) = deadline.bound(open.reloading.lock()).await else {
                return Err(Failure::unsent_in_time("no time left after NOSCRIPT"));
            };
            // If the count has changed meanwhile, another call has sent the script, and EVALSHA can be tried again.
            if open.reloads.load(Ordering::Acquire) == reloads {
                let with_text = call.command("EVAL", &script.text, &program);
                let answered = self.ask(&open, &with_text, redirect, deadline, held).await;
                // Counted even if EVAL failed. The calls that wait try EVALSHA then, and the first that misses again
                // sends the script.
                open.reloads.fetch_add(1, Ordering::Release);
                open.load_again(script);
                return answered;
            }
        }
        // Scripts are being flushed all the time. EVAL cannot miss.
        let with_text = call.command("EVAL", &script.text, &program);
        self.ask(&open, &with_text, redirect, deadline, held).await
    }

    /// Records a result for the breaker. If the breaker opens, all connections are dropped.
    fn judge(self: &Arc<Self>, went_well: bool) {
        let late_answers = self.pulse.take_late_answers();
        let mut breaker = self.breaker.lock();
        // Replies that came after their callers had given up still show that the server works.
        for _ in 0..late_answers.min(u64::from(u64::BITS)) {
            breaker.note(true);
        }
        let opens = breaker.note(went_well);
        drop(breaker);
        // Of the calls that fail at once, only the first one logs and reconnects.
        if opens && !self.tripped.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                target: "spillgate",
                server = %self.server,
                "breaker opened: the server failed too many calls; calls fail at once until it answers again"
            );
            self.renew();
            self.changed.notify_waiters();
        }
    }

    /// Takes a place in flight, or denies the call before it is sent: the server could not answer more in time.
    fn place_in_flight(&self) -> Result<PlaceInFlight, Failure> {
        // The place exists before the count rises, so that its drop takes the count back if the call is denied.
        let place = PlaceInFlight(Arc::clone(&self.in_flight));
        if self.in_flight.fetch_add(1, Ordering::Relaxed) < IN_FLIGHT_MAX * self.lines.len() {
            return Ok(place);
        }
        Err(Failure::unsent_in_time("too many calls are in flight"))
    }

    /// Waits for a connection, at most as long as for a reply.
    async fn connection(self: &Arc<Self>, deadline: Deadline) -> Result<Arc<Open>, Failure> {
        if let Some(open) = self.any_open() {
            return Ok(open);
        }
        let not_connected = || {
            Failure::NotSent(match self.trouble() {
                Some(why) => why.map(|why| format!("not connected to {}: {why}", self.server)),
                None => format!("not connected to {} yet", self.server).into(),
            })
        };
        // Calls do not wait for a server that has failed, but each one makes sure that the reconnecting task runs.
        if self.tripped.load(Ordering::Relaxed) {
            self.connect();
            return Err(not_connected());
        }
        // A connection may be on its way: waits for it as long as for a byte of a reply, or until the breaker opens.
        let mut found = pin!(self.until(|link| match link.any_open() {
            None if link.is_tripped() => Some(None),
            None => None,
            open => Some(open),
        }));
        loop {
            let began = Instant::now();
            match Deadline::after(self.timeout).min(deadline).bound(found.as_mut()).await {
                Some(Some(open)) => return Ok(open),
                Some(None) => return Err(not_connected()),
                // The caller's deadline was shorter than the timeout, so the failure is not the server's.
                None if deadline.left().is_zero() => {
                    return Err(Failure::Hasty(not_connected().why().clone()));
                }
                // The server answers to the attempt.
                None if self.pulse.received_since(began) => {}
                None => return Err(not_connected()),
            }
        }
    }

    /// Returns the first result of `find`, and connects while there is none.
    async fn until<T>(self: &Arc<Self>, find: impl Fn(&Arc<Self>) -> Option<T>) -> T {
        loop {
            // Registered before `find` runs, so that a change in between is not missed.
            let changed = self.changed.notified();
            if let Some(found) = find(self) {
                return found;
            }
            self.connect();
            changed.await;
            // A runtime that ends drops the connecting task within `connect`, which wakes this caller at once. Without
            // this pause it would never return to the runtime, which would wait for it forever.
            tokio::task::yield_now().await;
        }
    }

    /// Returns the next open connection in turn, and starts a reconnect if one is missing.
    ///
    /// A closed connection counts as missing, since a call on it would fail unsent: its server closed it while no call
    /// was in flight, or the runtime that opened it has ended.
    fn any_open(self: &Arc<Self>) -> Option<Arc<Open>> {
        let first = self.next_line.fetch_add(1, Ordering::Relaxed);
        let open = |turn: usize| {
            let open = self.lines[(first + turn) % self.lines.len()].load_full()?;
            if open.wire.is_closed() {
                self.drop_line(&open);
                return None;
            }
            Some(open)
        };
        let found = (0..self.lines.len()).find_map(|turn| Some((turn, open(turn)?)));
        // The first in turn is missing, since a later one was found.
        if let Some((1.., _)) = found {
            self.connect();
        }
        found.map(|(_, open)| open)
    }

    /// Runs the script once.
    ///
    /// A malformed reply belongs to another command: replies on this line are out of step, so the line is dropped.
    async fn ask(
        self: &Arc<Self>,
        open: &Arc<Open>,
        command: &Cmd,
        redirect: Redirect,
        deadline: Deadline,
        held: &mut Held,
    ) -> Result<Reply, Failure> {
        let answer = self.send(open, command, redirect, deadline, held).await?;
        answer.integers().and_then(Reply::parse).map_err(|why| {
            self.drop_line(open);
            Failure::Unknown(format!("{}: {why}", self.server).into())
        })
    }

    /// Sends a command and returns its reply. Sends nothing after the caller's deadline. Drops a broken connection.
    async fn send(
        &self,
        open: &Arc<Open>,
        command: &Cmd,
        redirect: Redirect,
        deadline: Deadline,
        held: &mut Held,
    ) -> Result<WireReply, Failure> {
        if deadline.has_passed() {
            return Err(Failure::unsent_in_time("the caller's deadline had passed"));
        }
        let (packed, commands) = packed(command, redirect);
        // The line has `held` while the call is in flight. It comes back with the reply, for a second attempt at the
        // same call; if the caller gives up before, it stays with the line.
        let answer = open.wire.line.call(&packed, commands, held.take());
        let Some((answer, along)) = deadline.bound(answer).await else {
            return Err(Failure::too_late(format!("{} did not answer in time", self.server)));
        };
        *held = along;
        self.classified(open, answer)
    }

    fn classified(
        &self,
        open: &Arc<Open>,
        answer: RedisResult<WireReply>,
    ) -> Result<WireReply, Failure> {
        answer.map_err(|error| {
            // The connections raise this error themselves when the shard is silent; the breaker has counted it.
            if error.is_timeout() {
                let why = format!("{} sent no byte for {:?}", self.server, self.timeout);
                return Failure::Silent(Why::new(why, error));
            }
            if error.is_io_error() || error.is_unrecoverable_error() {
                self.drop_line(open);
            }
            Failure::from_error(&error)
        })
    }

    /// Starts connecting in the background until all lines are open, unless a task does so already.
    fn connect(self: &Arc<Self>) {
        if self.connecting.swap(true, Ordering::AcqRel) {
            return;
        }
        // The mark exists before the task is polled: a runtime that ends may drop the task unpolled.
        tokio::spawn(keep_connecting(Connecting(Arc::downgrade(self))));
    }

    async fn open_line(self: &Arc<Self>, line: &ArcSwapOption<Open>) -> Result<(), Failure> {
        let attempt = Deadline::after(CONNECT).bound(self.open()).await;
        let late = || Err(Failure::NotSent(format!("no answer within {CONNECT:?}").into()));
        let opened = attempt.unwrap_or_else(late).map_err(Failure::unsent);
        match opened {
            Ok(open) => {
                // Stored before the callers are woken, each of which looks for an open line.
                line.store(Some(Arc::new(open)));
                self.opened.fetch_add(1, Ordering::Relaxed);
                *self.trouble.lock() = None;
                // Results are forgotten only if the breaker was open. A server may accept connections and still fail
                // its calls; reconnects that reset the count would keep the breaker closed then.
                if self.tripped.swap(false, Ordering::AcqRel) {
                    self.breaker.lock().reset();
                    let server = &self.server;
                    tracing::info!(target: "spillgate", %server, "breaker closed: the server answers again");
                }
                self.changed.notify_waiters();
                Ok(())
            }
            Err(failure) => {
                let before = self.trouble.lock().replace(failure.why().clone());
                failure.report_credentials(&self.server, before.as_deref());
                self.changed.notify_waiters();
                // Callers with short deadlines do not wait long enough to count this failure, so it is counted here.
                if self.lines.iter().all(|line| line.load().is_none()) {
                    self.judge(false);
                }
                Err(failure)
            }
        }
    }

    /// Opens a connection, loads the script, and runs a call that charges nothing.
    ///
    /// The load shows which variant of the script the server accepts. The caller must bound the wait.
    async fn open(&self) -> Result<Open, Failure> {
        let wire = self.server.dial().await.map_err(|error| Failure::from_error(&error))?;
        // From here on each byte shows that the server works, also to callers that wait for this connection.
        wire.line.watch(&self.pulse);
        let mut scripts = &script::PLAIN;
        for candidate in [&script::MARKED, &script::PLAIN] {
            match wire.ask(&script::load(&candidate.decides)).await {
                Ok(_) => {
                    scripts = candidate;
                    break;
                }
                Err(failure @ (Failure::Unknown(_) | Failure::NotHere(..))) => return Err(failure),
                // A user without the right to load may still have the right to run. The test call below shows it.
                Err(_) => {}
            }
        }
        let probe = probe();
        match wire.ask(&probe.command("EVAL", &scripts.decides.text, &probe.encoded())).await {
            // Any other error shows that the server works, such as MOVED: the slot of the tested key may be another
            // node's.
            Err(failure) if failure.shows_work() == Some(false) => return Err(failure),
            _ => {}
        }
        let (reloads, reloading) = (AtomicU64::new(0), tokio::sync::Mutex::new(()));
        Ok(Open { wire, scripts, reloads, reloading })
    }

    fn drop_line(&self, broken: &Arc<Open>) {
        for line in &self.lines {
            // Only this connection is dropped: another task may have replaced it already.
            let current = line.load();
            if current.as_ref().is_some_and(|open| Arc::ptr_eq(open, broken)) {
                line.compare_and_swap(&current, None);
            }
        }
    }
}

/// Encodes a command, and counts the replies to it. The server that is taking over a slot gets ASKING first.
fn packed(command: &Cmd, redirect: Redirect) -> (Vec<u8>, usize) {
    match redirect {
        Redirect::None => (command.get_packed_command(), 1),
        Redirect::Ask => {
            let mut packed = ::redis::cmd("ASKING").get_packed_command();
            command.write_packed_command(&mut packed);
            (packed, 2)
        }
    }
}

/// Opens missing lines one at a time, with growing pauses, until all are open or the link is dropped.
async fn keep_connecting(mark: Connecting) {
    let weak = Weak::clone(&mark.0);
    // The task rests without a strong reference, so that a link that is no longer used is dropped meanwhile.
    let mut pause = PAUSE_MIN;
    // A server whose breaker has just opened gets a pause before the first attempt.
    let mut rest = weak.upgrade().is_some_and(|link| link.tripped.load(Ordering::Relaxed));
    loop {
        if rest {
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let Some(link) = weak.upgrade() else { return };
        let Some(line) = link.lines.iter().find(|line| line.load().is_none()) else { break };
        rest = link.open_line(line).await.is_err();
    }
    drop(mark);
    // A line that broke before the mark ended found it still set.
    let link = weak.upgrade();
    if let Some(link) = link.filter(|it| it.lines.iter().any(|line| line.load().is_none())) {
        link.connect();
    }
}

/// Marks that a task is connecting. Its drop ends the mark, however the task ended, and wakes the callers that wait for
/// a connection: one of them starts another task if a line is missing. The drop starts none, since the runtime may be
/// ending.
struct Connecting(Weak<Link>);

impl Drop for Connecting {
    fn drop(&mut self) {
        let Some(link) = self.0.upgrade() else { return };
        link.connecting.store(false, Ordering::Release);
        link.changed.notify_waiters();
    }
}

/// A place among the calls in flight.
struct PlaceInFlight(Arc<AtomicUsize>);

impl Drop for PlaceInFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Open {
    /// Loads the script again in the background. A server that is short of memory forgets scripts sent by EVAL first.
    fn load_again(self: &Arc<Self>, script: &'static Script) {
        let open = Arc::clone(self);
        tokio::spawn(async move {
            let load = script::load(script);
            // If it is lost again, the next NOSCRIPT shows it.
            let _ = Deadline::after(CONNECT).bound(open.wire.send(&load)).await;
        });
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Open(..)")
    }
}

/// Returns a call that tests whether a server decides. It peeks at a counter that no limit has, and changes nothing.
fn probe() -> Call<'static> {
    static PEEK: LazyLock<Transaction> = LazyLock::new(|| {
        let limit = NamedLimit::new(Limit::per_second(1), 0);
        let counter = PlannedCharge::new(SubjectKey { tag: 0, id: 0, rule: 0 }, limit);
        let charges = [counter].into_iter().collect();
        Transaction { intent: Intent::Peek, record: RecordAction::None, charges }
    });
    let mut call = Call::new(Header { given_us: 0, estimate_us: 0, nonce: 1 });
    call.decision(&PEEK);
    call
}

/// The time limit of an attempt to connect. A server that works answers a hello within it.
const CONNECT: Duration = Duration::from_secs(1);
/// The longest delay of a start by a store that cannot be reached.
const WARM_UP: Duration = Duration::from_secs(1);
/// The most calls in flight on one connection: what a server of 40,000 calls a second answers within a deadline.
const IN_FLIGHT_MAX: usize = 8_192;
/// If the script is lost twice within one call, an operator is flushing scripts on purpose.
const RELOADS_AWAITED: usize = 2;
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// A server that refuses connections during its outage is found within this time after it. One that leaves attempts
/// unanswered is found up to [`CONNECT`] later. Runtime changes made during an outage must be everywhere within a
/// second of its end.
const PAUSE_MAX: Duration = Duration::from_millis(500);
