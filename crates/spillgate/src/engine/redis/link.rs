//! The connections to one server. They are made off the path, one at a time, and tried out before
//! the first call goes over them. Every wait on them is bounded, and so is what is under way.
//!
//! Longer than 450 lines because the queue is rebuilt with the structure of the decision path.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::redis::{Cmd, RedisResult, Value};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::address::Host;
use super::breaker::Breaker;
use super::failure::{Failure, NotHere};
use super::jitter::jittered;
use super::program::{Call, Reply};
use super::script::{self, Script};
use super::server::Server;
use super::wire::{Answer, Held, Pulse, Wire};
use crate::time::Deadline;

/// Connections that are made again when they break.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: Server,
    lines: Box<[ArcSwapOption<Open>]>,
    next_line: AtomicUsize,
    /// How long a connection is waited for, and a sign of life.
    timeout: Duration,
    pulse: Arc<Pulse>,
    in_flight: Arc<AtomicUsize>,
    breaker: Mutex<Breaker>,
    /// The breaker is open: nobody waits, until a connection has been tried out.
    tripped: AtomicBool,
    /// Whether somebody is connecting, or waiting to try again.
    connecting: AtomicBool,
    changed: Notify,
    /// Why the last attempt to connect came to nothing.
    trouble: Mutex<Option<String>>,
}

/// A connection that answered, and the script that its server takes.
struct Open {
    wire: Wire,
    script: &'static Script,
    /// How often the script was sent again, after the server had lost it.
    reloads: AtomicU64,
    reloading: tokio::sync::Mutex<()>,
}

/// Whether a call goes to a slot's owner, or to whom the owner is handing the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    None,
    Ask,
}

impl Link {
    pub(super) fn new(server: Server, connections: usize, timeout: Duration) -> Link {
        let shared = |link: &Weak<Shared>| {
            let link = Weak::clone(link);
            let on_silence = move || {
                if let Some(shared) = link.upgrade() {
                    shared.note(false);
                }
            };
            Shared {
                server,
                lines: (0..connections).map(|_| ArcSwapOption::empty()).collect(),
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
        };
        Link { shared: Arc::new_cyclic(shared) }
    }

    /// Waits a moment for the first connection, so that the first decisions are the store's; a server
    /// that is not there is not waited for.
    pub(super) async fn warm_up(&self) {
        let tried = self.shared.until(|shared| {
            (shared.any_open().is_some() || shared.trouble.lock().is_some()).then_some(())
        });
        // Silent, the server is an outage, and found out by the first decision.
        let _ = Deadline::after(WARM_UP).bound(tried).await;
    }

    /// Runs the script. A caller may leave before the answer: the call then keeps its place in flight, and `held`, until
    /// the answer comes or the server is found silent.
    pub(super) async fn run(
        &self,
        call: &Call<'_>,
        redirect: Redirect,
        deadline: Deadline,
        held: Held,
    ) -> Result<Reply, Failure> {
        let answer = self.run_unjudged(call, redirect, deadline, held).await;
        let works = answer.as_ref().map_or_else(Failure::shows_work, |_| Some(true));
        if let Some(works) = works {
            self.shared.note(works);
        }
        answer
    }

    /// Sends any one command. It ends by its own deadline: silence shortens it not, and it is no measure of silence for
    /// others, for it may take the server longer than a decision does.
    pub(super) async fn command(
        &self,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let shared = &self.shared;
        let _place = shared.place_in_flight()?;
        let answer = async {
            let open = shared.open(deadline).await?;
            let sent_at = Instant::now();
            match deadline.bound(open.wire.send(command)).await {
                Some(answer) => shared.outcomes_of(&open, answer).map(Answer::value),
                None if shared.pulse.received_since(sent_at) => {
                    Err(Failure::too_late(format!("{} did not answer in time", shared.server)))
                }
                None => Err(Failure::Unknown(format!("{} did not answer in time", shared.server))),
            }
        };
        let answer = answer.await;
        // Silence counts here too. An answer does not: a server that answers upkeep may refuse, or
        // lose, every decision.
        if matches!(&answer, Err(Failure::Unknown(_) | Failure::NotSent(_))) {
            shared.note(false);
        }
        answer
    }

    /// A connection beside these, for who looks at the server.
    pub(super) async fn dial(&self) -> Result<Wire, Failure> {
        self.server().dial().await.map_err(|error| Failure::of(&error).unsent())
    }

    /// Where its connections lead.
    pub(super) fn server(&self) -> &Server {
        &self.shared.server
    }

    /// Has the connections made anew: the server is not what it was.
    pub(super) fn renew(&self) {
        self.shared.renew();
    }

    /// Whether nobody waits for this server any more.
    pub(super) fn is_tripped(&self) -> bool {
        self.shared.tripped.load(Ordering::Relaxed)
    }

    /// Whether any connection is open.
    pub(super) fn is_connected(&self) -> bool {
        self.shared.lines.iter().any(|line| line.load().is_some())
    }

    /// The host and port, where that is what its server goes by.
    pub(super) fn host(&self) -> Option<&Host> {
        self.shared.server.host()
    }

    /// Why the last attempt to connect came to nothing.
    pub(super) fn trouble(&self) -> Option<String> {
        self.shared.trouble.lock().clone()
    }

    async fn run_unjudged(
        &self,
        call: &Call<'_>,
        redirect: Redirect,
        deadline: Deadline,
        held: Held,
    ) -> Result<Reply, Failure> {
        let shared = &self.shared;
        let location = shared.place_in_flight()?;
        let open = shared.open(deadline).await?;
        let mut held: Held = Some(Box::new((location, held)));
        let held = &mut held;
        let program = call.encoded();
        let script = if call.is_of_leases { script::of_leases(open.script) } else { open.script };
        let by_name = call.command("EVALSHA", &script.sha, &program);
        for _ in 0..RELOADS_AWAITED {
            let reloads = open.reloads.load(Ordering::Acquire);
            match shared.ask(&open, &by_name, redirect, deadline, held).await {
                Err(Failure::NotHere(NotHere::NoScript, _)) => {}
                answered => return answered,
            }
            // The script is long: one call brings it along, and the others wait for that one.
            let Some(_reloading) = deadline.bound(open.reloading.lock()).await else {
                return Err(Failure::unsent_in_time("no time left after NOSCRIPT"));
            };
            if open.reloads.load(Ordering::Acquire) == reloads {
                let with_text = call.command("EVAL", &script.text, &program);
                let answered = shared.ask(&open, &with_text, redirect, deadline, held).await;
                open.reloads.fetch_add(1, Ordering::Release);
                open.load_again(script);
                return answered;
            }
        }
        // Somebody flushes scripts all the time. EVAL cannot miss.
        let with_text = call.command("EVAL", &script.text, &program);
        shared.ask(&open, &with_text, redirect, deadline, held).await
    }
}

impl Shared {
    /// Keeps count. One failure too many, and the server is left alone.
    fn note(self: &Arc<Self>, went_well: bool) {
        let late_answers = self.pulse.take_late_answers();
        let mut breaker = self.breaker.lock();
        // Answers that came too late for their callers show a server that works.
        for _ in 0..late_answers.min(u64::from(u64::BITS)) {
            breaker.note(true);
        }
        let opens = breaker.note(went_well);
        drop(breaker);
        if opens && !self.tripped.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                target: "spillgate",
                server = %self.server,
                "breaker opened: the server fails too many calls, and is left alone until it answers"
            );
            self.renew();
        }
    }

    fn renew(self: &Arc<Self>) {
        self.lines.iter().for_each(|line| line.store(None));
        self.connect();
    }

    /// More than a server answers while a decision waits: refused before it is sent.
    fn place_in_flight(&self) -> Result<PlaceInFlight, Failure> {
        let location = PlaceInFlight(Arc::clone(&self.in_flight));
        if self.in_flight.fetch_add(1, Ordering::Relaxed) < IN_FLIGHT_MAX * self.lines.len() {
            return Ok(location);
        }
        Err(Failure::unsent_in_time("too many calls are under way"))
    }

    async fn open(self: &Arc<Self>, deadline: Deadline) -> Result<Arc<Open>, Failure> {
        if let Some(open) = self.any_open() {
            return Ok(open);
        }
        let not_connected = || {
            let trouble = self.trouble.lock();
            Failure::NotSent(match &*trouble {
                Some(why) => format!("not connected to {}: {why}", self.server),
                None => format!("not connected to {} yet", self.server),
            })
        };
        if self.tripped.load(Ordering::Relaxed) {
            self.connect();
            return Err(not_connected());
        }
        let patient = Deadline::after(self.timeout);
        if let Some(open) = patient.min(deadline).bound(self.until(Shared::any_open)).await {
            return Ok(open);
        }
        // A caller of its own, shorter patience shows nothing of the server.
        let is_hasty = deadline.later(HASTE).is_some_and(|deadline| deadline < patient);
        Err(match not_connected() {
            Failure::NotSent(why) if is_hasty => Failure::Hasty(why),
            failure => failure,
        })
    }

    /// Connects until something is found.
    async fn until<T>(self: &Arc<Self>, find: impl Fn(&Arc<Self>) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = find(self) {
                return found;
            }
            self.connect();
            changed.await;
        }
    }

    /// The next connection in turn, or any other that is open.
    fn any_open(self: &Arc<Self>) -> Option<Arc<Open>> {
        let first = self.next_line.fetch_add(1, Ordering::Relaxed);
        let open = |turn: usize| self.lines[(first + turn) % self.lines.len()].load_full();
        let found = (0..self.lines.len()).find_map(|turn| Some((turn, open(turn)?)));
        if let Some((1.., _)) = found {
            self.connect();
        }
        found.map(|(_, open)| open)
    }

    /// One call of the script. An answer that is none of its kind belongs to another command: the
    /// line has lost some, and no later answer on it can be trusted.
    async fn ask(
        self: &Arc<Self>,
        open: &Arc<Open>,
        command: &Cmd,
        redirect: Redirect,
        deadline: Deadline,
        held: &mut Held,
    ) -> Result<Reply, Failure> {
        let reply = match self.send(open, command, redirect, deadline, held).await? {
            Answer::Integers(integers) => Reply::of_integers(integers),
            Answer::Other(value) => Reply::of(value),
        };
        reply.map_err(|why| {
            self.drop_line(open);
            Failure::Unknown(format!("{}: {why}", self.server))
        })
    }

    /// One command, and what came of it; nothing is sent for a caller whose time is over. A broken connection is dropped,
    /// for the next to be made.
    async fn send(
        &self,
        open: &Arc<Open>,
        command: &Cmd,
        redirect: Redirect,
        deadline: Deadline,
        held: &mut Held,
    ) -> Result<Answer, Failure> {
        if deadline.has_passed() {
            return Err(Failure::unsent_in_time("the time of the caller was over"));
        }
        let along = held.take();
        let answer = async {
            match redirect {
                Redirect::None => open.wire.call(command, along).await,
                Redirect::Ask => {
                    let mut pipeline = ::redis::pipe();
                    pipeline.cmd("ASKING").add_command(command.clone());
                    open.wire.call_all(&pipeline, along).await
                }
            }
        };
        let Some((answer, along)) = deadline.bound(answer).await else {
            return Err(Failure::too_late(format!("{} did not answer in time", self.server)));
        };
        *held = along;
        self.outcomes_of(open, answer)
    }

    fn outcomes_of(
        &self,
        open: &Arc<Open>,
        answer: RedisResult<Answer>,
    ) -> Result<Answer, Failure> {
        answer.map_err(|error| {
            if error.is_timeout() {
                let timeout = self.timeout;
                return Failure::Silent(format!("{} sent no byte for {timeout:?}", self.server));
            }
            if error.is_io_error() || error.is_unrecoverable_error() {
                self.drop_line(open);
            }
            Failure::of(&error)
        })
    }

    /// Connects in the background, unless somebody does already, until all lines are open.
    fn connect(self: &Arc<Self>) {
        if self.connecting.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(keep_connecting(Arc::downgrade(self)));
    }

    async fn open_line(self: &Arc<Self>, line: &ArcSwapOption<Open>) -> Result<(), Failure> {
        let attempt = Deadline::after(CONNECT).bound(open(&self.server)).await;
        let late = || Err(Failure::NotSent(format!("no answer within {CONNECT:?}")));
        let opened = attempt.unwrap_or_else(late).map_err(Failure::unsent);
        match opened {
            Ok(open) => {
                open.wire.watch(&self.pulse);
                line.store(Some(Arc::new(open)));
                *self.trouble.lock() = None;
                if self.tripped.swap(false, Ordering::AcqRel) {
                    self.breaker.lock().reset();
                    let server = &self.server;
                    tracing::info!(target: "spillgate", %server, "breaker closed: the server answers again");
                }
                self.changed.notify_waiters();
                Ok(())
            }
            Err(failure) => {
                let before = self.trouble.lock().replace(failure.why().to_owned());
                failure.report_credentials(&self.server, before.as_deref());
                self.changed.notify_waiters();
                // Callers of little patience do not wait long enough to see it.
                if self.lines.iter().all(|line| line.load().is_none()) {
                    self.note(false);
                }
                Err(failure)
            }
        }
    }

    fn drop_line(&self, broken: &Arc<Open>) {
        for line in &self.lines {
            let current = line.load();
            if current.as_ref().is_some_and(|open| Arc::ptr_eq(open, broken)) {
                line.compare_and_swap(&current, None);
            }
        }
    }
}

/// One attempt at a time, further and further apart, until all lines are open or nobody is left who
/// wants them.
async fn keep_connecting(link: Weak<Shared>) {
    let _busy = Connecting(link.clone());
    let mut pause = PAUSE_MIN;
    let mut rest = link.upgrade().is_some_and(|shared| shared.tripped.load(Ordering::Relaxed));
    loop {
        if rest {
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let Some(shared) = link.upgrade() else { return };
        let Some(line) = shared.lines.iter().find(|line| line.load().is_none()) else { return };
        rest = shared.open_line(line).await.is_err();
    }
}

/// Whoever connects is gone when this is, however it ended; a line that broke at the last moment
/// found somebody connecting, and is looked at once more.
struct Connecting(Weak<Shared>);

impl Drop for Connecting {
    fn drop(&mut self) {
        let Some(shared) = self.0.upgrade() else { return };
        shared.connecting.store(false, Ordering::Release);
        let complete = shared.lines.iter().all(|line| line.load().is_some());
        if !complete && tokio::runtime::Handle::try_current().is_ok() {
            shared.connect();
        }
    }
}

/// A place among the calls under way.
struct PlaceInFlight(Arc<AtomicUsize>);

impl Drop for PlaceInFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Open {
    /// Scripts that came with EVAL are the first that a full server forgets.
    fn load_again(self: &Arc<Self>, script: &'static Script) {
        let open = Arc::clone(self);
        tokio::spawn(async move {
            let load = script::load(script);
            // Lost again, the next NOSCRIPT tells.
            let _ = Deadline::after(CONNECT).bound(open.wire.send(&load)).await;
        });
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Open(..)")
    }
}

/// A connection with the script loaded, tried out by a call that charges nothing. Which script shows
/// whether the server knows `#!lua`. Every wait on it is the caller's to bound.
async fn open(server: &Server) -> Result<Open, Failure> {
    let wire = server.dial().await.map_err(|error| Failure::of(&error))?;
    let mut script = &*script::PLAIN;
    for candidate in [&*script::MARKED, &*script::PLAIN] {
        match wire.ask(&script::load(candidate)).await {
            Ok(_) => {
                script = candidate;
                break;
            }
            Err(failure @ (Failure::Unknown(_) | Failure::NotHere(..))) => return Err(failure),
            // A user who may not load may still run: the probe tells.
            Err(_) => {}
        }
    }
    let probe = script::probe();
    match wire.ask(&probe.command("EVAL", &script.text, &probe.encoded())).await {
        Err(failure) if failure.shows_work() == Some(false) => return Err(failure),
        _ => {}
    }
    let (reloads, reloading) = (AtomicU64::new(0), tokio::sync::Mutex::new(()));
    Ok(Open { wire, script, reloads, reloading })
}

/// A server that answers at all answers a hello within this.
const CONNECT: Duration = Duration::from_secs(1);
/// A start is not held up longer by a store that is not there.
const WARM_UP: Duration = Duration::from_secs(1);
/// A caller that waits so much less than the time-out for a connection shows nothing of the server.
const HASTE: Duration = Duration::from_millis(1);
/// Calls under way on one connection: what a server of 40,000 calls a second answers while a decision waits.
const IN_FLIGHT_MAX: usize = 8_192;
/// A script lost twice within one call is being flushed on purpose.
const RELOADS_AWAITED: usize = 2;
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// A server that is back is found within this.
const PAUSE_MAX: Duration = Duration::from_secs(1);
