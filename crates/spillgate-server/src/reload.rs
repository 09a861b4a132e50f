//! Reload of the policy file: a valid file is in force from the next request on, an invalid one changes nothing.
//!
//! A changed file is read once two looks find the same content, and at the third look if it has fewer rules or fewer
//! overrides than are in force, so that half a file is not put in force. A file without rules is refused while rules
//! are in force, because it was probably cut short; `rules = []` in it confirms that it is meant.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillgate::Policy;
use spillgate::policy::FileSetting;
use tokio::signal::unix::Signal;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::app::App;
use crate::config::{self, ConfigError, Loaded, Problem};
use crate::counted::counted;
use crate::credentials::Stamp;
use crate::history::EventKind;
use crate::systemd::Manager;

mod gone;

use gone::warning_of_gone_rules;

/// A file of settings and policy that is watched for changes.
pub(crate) struct Followed {
    file: PathBuf,
    /// The content that was put in force or refused last; `None` after the refusal of a file that kept changing.
    handled: Option<Content>,
    /// Other content that was found since.
    changing: Option<Changing>,
    /// The stamp of a large file at the last look.
    stamp: Option<Stamp>,
    /// The settings that the file had when it was put in force last.
    set: Vec<FileSetting>,
}

/// The parts of a changed file.
struct Change {
    policy: Policy,
    set: Vec<FileSetting>,
}

/// New content, and the instant of the look that found it first.
struct Changing {
    content: Content,
    since: Instant,
}

/// The number of entries of a policy. Half a file has fewer of one kind.
#[derive(Clone, Copy)]
struct Size {
    rules: usize,
    overrides: usize,
}

impl Size {
    fn new(policy: &Policy) -> Size {
        Size { rules: policy.rules().len(), overrides: policy.override_count() }
    }

    /// Returns whether it has fewer entries of one kind than `other`, even if it has more of the other kind. A file
    /// often ends with its overrides, and some of these are blocks.
    fn is_short_of(self, other: Size) -> bool {
        self.rules < other.rules || self.overrides < other.overrides
    }
}

/// The result of one look at the file.
enum Found {
    /// The content that is in force, or was refused.
    Same,
    /// New content, which may still be half written.
    Changing,
    /// New content that did not change between two looks, or three.
    Whole(Result<Change, ConfigError>),
}

impl Followed {
    /// Notes the content of the file now. Call it before the file is loaded, so that no change is missed.
    pub(crate) fn now(file: &Path) -> Followed {
        let text = config::read(file);
        let handled = Some(Content::from_text(&text));
        let name = file.display().to_string();
        let set = Policy::settings_in(&name, &text.unwrap_or_default()).unwrap_or_default();
        Followed { file: file.to_owned(), handled, changing: None, stamp: None, set }
    }

    /// Reads the file again whenever it changes, and at each hangup signal.
    pub(crate) async fn follow(mut self, app: App, mut hangup: Signal, manager: Manager) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The last signal without an answer. The manager waits for `ready`, so a signal gets one even if the content is
        // the same or the file keeps changing.
        let mut asked: Option<Instant> = None;
        loop {
            let now = tokio::select! {
                signal = hangup.recv() => {
                    if signal.is_none() {
                        return;
                    }
                    manager.reloading();
                    // The next look comes a full interval after this one, else it could come too soon to find the
                    // file unchanged.
                    ticks.reset();
                    let now = Instant::now();
                    asked = Some(now);
                    now
                }
                now = ticks.tick() => now,
            };
            let in_force = Size::new(&app.limiter().policy());
            let (followed, found) = self.look(asked.is_some(), now, in_force).await;
            self = followed;
            let status = match found {
                Found::Same => continue,
                Found::Changing => match asked {
                    Some(since) if now - since >= CHANGING_MAX => {
                        // The file may settle on the content in force, which ends the refusal too.
                        self.handled = None;
                        self.refuse(&KEEPS_CHANGING, &app)
                    }
                    _ => continue,
                },
                Found::Whole(Ok(change)) => self.judge(change, &app),
                Found::Whole(Err(error)) => self.refuse(&error, &app),
            };
            asked = None;
            manager.ready(&status);
        }
    }

    /// Looks at the file on a blocking thread: a million overrides take seconds to read.
    async fn look(mut self, asked: bool, now: Instant, in_force: Size) -> (Followed, Found) {
        let looking = tokio::task::spawn_blocking(move || {
            let found = self.look_now(asked, now, in_force);
            (self, found)
        });
        looking.await.expect("reading a file returns errors and does not panic")
    }

    /// Looks at the file. `in_force` is the size of the policy in force.
    fn look_now(&mut self, asked: bool, now: Instant, in_force: Size) -> Found {
        // The stamp is taken before reading, so a write during the reading shows as another change.
        let stamp = Stamp::from_file(&self.file).filter(|stamp| stamp.length > READ_ALWAYS_MAX);
        let is_settled = !asked && self.changing.is_none();
        if is_settled && stamp.is_some() && stamp == self.stamp {
            return Found::Same;
        }
        self.stamp = stamp;
        let text = config::read(&self.file);
        let content = Content::from_text(&text);
        let mut still_for = Duration::MAX;
        if self.handled == Some(content) {
            self.changing = None;
            if !asked {
                return Found::Same;
            }
        } else {
            let same = self.changing.as_ref().filter(|changing| changing.content == content);
            let since = same.map_or(now, |changing| changing.since);
            self.changing = Some(Changing { content, since });
            still_for = now - since;
            if still_for < QUIET {
                return Found::Changing;
            }
        }
        let text = text.map_err(ConfigError::from);
        let loaded = text.and_then(|text| Ok(config::load_text(&self.name(), &text)?));
        let read = loaded.map(|Loaded { policy, set, .. }| Change { policy, set });
        // The rest of the file may be yet to come: a writer may pause.
        let is_short =
            read.as_ref().is_ok_and(|change| Size::new(&change.policy).is_short_of(in_force));
        if is_short && still_for < 2 * QUIET {
            return Found::Changing;
        }
        self.changing = None;
        self.handled = Some(content);
        Found::Whole(read)
    }

    /// Puts a change in force, unless it would leave no rule. Returns the status for the service's manager.
    fn judge(&mut self, change: Change, app: &App) -> String {
        let in_force = app.limiter().policy().rules().len();
        if in_force > 0 && has_no_rules(&change.policy) {
            let error = format!(
                "{}: it has no rules, and {} in force; write `rules = []` in it if no rule is meant to be",
                self.name(),
                if in_force == 1 {
                    "1 rule is".to_owned()
                } else {
                    format!("{in_force} rules are")
                }
            );
            return self.refuse(&error, app);
        }
        self.apply(change, app)
    }

    fn apply(&mut self, change: Change, app: &App) -> String {
        let Change { policy, set } = change;
        let rules = policy.rules().len();
        let warning = warning_of_gone_rules(&app.limiter().policy(), &policy);
        let other_settings = !config::are_same(&self.set, &set);
        self.set = set;
        app.limiter().set_policy(policy);
        app.reloads.count_applied(warning.as_deref());
        let in_force = format!("{}: {} in force", self.name(), counted(rules, "rule"));
        app.history.note(EventKind::Reload, &in_force);
        tracing::info!(target: "spillgate", "{in_force}");
        if other_settings {
            tracing::warn!(
                target: "spillgate",
                "{}: settings under [server], [store] and [telemetry] changed too; except the store's \
                 credentials, they take effect at the next start",
                self.name()
            );
        }
        match warning {
            None => in_force,
            Some(warning) => {
                tracing::warn!(target: "spillgate", "{}: {warning}", self.name());
                format!("{in_force}; {warning}")
            }
        }
    }

    fn refuse(&self, error: &dyn std::fmt::Display, app: &App) -> String {
        let why = error.to_string();
        app.reloads.count_refused(&why);
        app.history.note(EventKind::ReloadRefused, &format!("policy file refused: {why}"));
        // Each problem is an event of its own: a line break within one would leave its second line without a prefix.
        for problem in why.lines() {
            tracing::error!(target: "spillgate", "{problem}");
        }
        tracing::error!(target: "spillgate", "{}: the policy in force stays", self.name());
        format!("the policy in force stays: {error}")
    }

    fn name(&self) -> String {
        self.file.display().to_string()
    }
}

/// Returns whether a file looks as if it was cut short.
fn has_no_rules(policy: &Policy) -> bool {
    policy.rules().len() == 0 && !policy.is_empty_on_purpose()
}

/// A fingerprint of a file's content, or of the error that reading it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    length: usize,
    hash: u64,
}

impl Content {
    fn from_text(text: &Result<String, Problem>) -> Content {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(u8::from(text.is_ok()));
        let length = match text {
            Ok(text) => {
                hasher.write(text.as_bytes());
                text.len()
            }
            Err(problem) => {
                hasher.write(problem.to_string().as_bytes());
                0
            }
        };
        Content { length, hash: hasher.finish() }
    }
}

/// The time between two looks: a change is in force after two looks, within about a second.
const LOOK: Duration = Duration::from_millis(500);
/// The time for which content must stay the same: a little less than between two looks, whose timers may be late.
const QUIET: Duration = Duration::from_millis(450);
/// The longest that a reload by signal waits for a file that keeps changing.
const CHANGING_MAX: Duration = Duration::from_secs(10);
/// A larger file is read only when its stamp changes: to read 100 MB twice a second takes a tenth of a core.
const READ_ALWAYS_MAX: u64 = 1 << 20;
const KEEPS_CHANGING: &str =
    "the file keeps changing; a reload reads it once it is the same for half a second";

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const EMPTY: Size = Size { rules: 0, overrides: 0 };

    /// A file that is removed at the end of the test.
    struct HeldFile(PathBuf);

    impl HeldFile {
        fn write(&self, text: &str) {
            std::fs::write(&self.0, text).unwrap();
        }
    }

    impl Drop for HeldFile {
        fn drop(&mut self) {
            // A leftover temporary file is no reason to fail a test.
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn followed(text: &str) -> (HeldFile, Followed) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("spillgate-reload-{}-{number}", std::process::id());
        let file = HeldFile(std::env::temp_dir().join(name));
        file.write(text);
        let followed = Followed::now(&file.0);
        (file, followed)
    }

    fn rules(count: usize) -> String {
        let rule = |n: usize| format!("[[rule]]\nname = \"r{n}\"\nkey = []\nlimits = [\"1/s\"]\n");
        (0..count).map(rule).collect()
    }

    fn rules_of(found: Found) -> Option<usize> {
        match found {
            Found::Whole(Ok(change)) => Some(change.policy.rules().len()),
            Found::Whole(Err(error)) => panic!("{error}"),
            Found::Same | Found::Changing => None,
        }
    }

    #[test]
    fn reads_a_file_once_two_looks_find_the_same_content() {
        let (file, mut followed) = followed(&rules(4));
        let began = Instant::now();
        let at = |looks: u32| began + LOOK * looks;
        assert!(matches!(followed.look_now(false, at(0), EMPTY), Found::Same));
        for (look, count) in [(1, 1), (2, 2), (3, 3)] {
            file.write(&rules(count));
            assert!(
                matches!(followed.look_now(false, at(look), EMPTY), Found::Changing),
                "{count}"
            );
        }
        // A signal shortly after a look does not count as the second look.
        let soon = at(3) + LOOK / 4;
        assert!(matches!(followed.look_now(true, soon, EMPTY), Found::Changing));
        assert_eq!(rules_of(followed.look_now(false, at(4), EMPTY)), Some(3));
        assert!(matches!(followed.look_now(false, at(5), EMPTY), Found::Same));
        assert_eq!(
            rules_of(followed.look_now(true, at(5), EMPTY)),
            Some(3),
            "a signal reads the file again"
        );
    }

    /// A writer may pause in the middle of the file.
    #[test]
    fn a_file_with_fewer_rules_waits_for_a_third_look() {
        let (file, mut followed) = followed(&rules(4));
        let began = Instant::now();
        let in_force = Size { rules: 4, overrides: 0 };
        let mut look =
            |looks: u32, asked| rules_of(followed.look_now(asked, began + LOOK * looks, in_force));
        file.write(&rules(2));
        assert_eq!((look(1, true), look(2, false), look(3, false)), (None, None, Some(2)));
        file.write(&rules(5));
        assert_eq!((look(4, false), look(5, false)), (None, Some(5)));
    }

    /// The overrides are often at the end of the file, and without them blocks are lifted.
    #[test]
    fn a_file_with_fewer_overrides_waits_for_a_third_look() {
        let with_overrides = |count: usize| {
            let entry = |n: usize| {
                format!(
                    "[[override]]\nrule = \"by_user\"\nsubject = {{ user = \"u{n}\" }}\nlimits = [\"block\"]\n"
                )
            };
            let rule = "[[rule]]\nname = \"by_user\"\nkey = [\"user\"]\nlimits = [\"1/s\"]\n";
            rule.to_owned() + &(0..count).map(entry).collect::<String>()
        };
        let (file, mut followed) = followed(&with_overrides(2));
        let began = Instant::now();
        let in_force = Size { rules: 1, overrides: 2 };
        let mut look =
            |looks: u32| rules_of(followed.look_now(false, began + LOOK * looks, in_force));
        file.write(&with_overrides(0));
        assert_eq!((look(1), look(2)), (None, None));
        file.write(&with_overrides(3));
        assert_eq!((look(3), look(4)), (None, Some(1)));
        file.write(&with_overrides(1));
        assert_eq!((look(5), look(6), look(7)), (None, None, Some(1)));
    }

    #[test]
    fn notices_a_change_that_keeps_size_and_time() {
        let (file, mut followed) = followed(&rules(1));
        let modified = std::fs::metadata(&file.0).unwrap().modified().unwrap();
        file.write(&rules(1).replace("1/s", "9/s"));
        std::fs::File::open(&file.0).unwrap().set_modified(modified).unwrap();
        let began = Instant::now();
        assert!(matches!(followed.look_now(false, began, EMPTY), Found::Changing));
        assert!(matches!(followed.look_now(false, began + LOOK, EMPTY), Found::Whole(Ok(_))));
    }

    #[test]
    fn notices_a_change_of_a_large_file_by_its_stamp() {
        let large = |name: &str| format!("{}# {name}{}", rules(1), "#".repeat(2 << 20));
        let (file, mut followed) = followed(&large("a"));
        let began = Instant::now();
        for look in 0..3 {
            assert!(matches!(followed.look_now(false, began + LOOK * look, EMPTY), Found::Same));
        }
        file.write(&large("b"));
        assert!(matches!(followed.look_now(false, began + LOOK * 3, EMPTY), Found::Changing));
        assert_eq!(rules_of(followed.look_now(false, began + LOOK * 4, EMPTY)), Some(1));
    }

    #[test]
    fn a_file_that_is_gone_for_a_moment_changes_nothing() {
        let (file, mut followed) = followed(&rules(1));
        let began = Instant::now();
        std::fs::remove_file(&file.0).unwrap();
        assert!(matches!(followed.look_now(false, began, EMPTY), Found::Changing));
        file.write(&rules(1));
        assert!(matches!(followed.look_now(false, began + LOOK, EMPTY), Found::Same));
    }
}
