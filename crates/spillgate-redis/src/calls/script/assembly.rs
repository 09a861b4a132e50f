//! Assembles a script from Lua files, so that each formula stands once in the source and fast loops pay no
//! call for it.
//!
//! A comment that begins with `@` is a directive:
//!
//! | directive | effect |
//! |---|---|
//! | `-- @include NAME` | the file of that name, here |
//! | `-- @fragment NAME(PARAMETERS) -> RESULTS` to `-- @end` | defines a fragment; emits nothing |
//! | `-- @inline NAME(ARGUMENTS) -> TARGETS` | the fragment's lines, here |
//!
//! - A directive whose line ends with a comma or an arrow continues in the comment below.
//! - An expansion stands in `do ... end`. Arguments are bound to the parameters as locals; an argument with
//!   its parameter's name needs no local, unless the fragment writes to it.
//! - Each result is replaced by its target, which the fragment may read and write.
//! - A fragment has one exit: its last line. All other names that it uses must be in scope where it is
//!   expanded.
//! - Comments, indentation, empty lines and the blanks after commas are left out.

use std::collections::{HashMap, HashSet};

/// A Lua file: the name by which others include it, its path below `src/`, and its text.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
}

/// A line of an assembled script, with its file and line in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub(crate) text: String,
    pub(crate) path: &'static str,
    pub(crate) number: usize,
}

/// Assembles the first file with all that it includes.
///
/// # Errors
///
/// Names the file, the line and the mistake in a directive.
pub fn assemble(sources: &[Source]) -> Result<Vec<Line>, String> {
    let fragments = fragments(sources)?;
    let mut assembly = Assembly { sources, fragments, depth: 0, lines: Vec::new() };
    let first = sources.first().map_or("", |source| source.name);
    assembly.include(first)?;
    Ok(assembly.lines)
}

struct Assembly<'s> {
    sources: &'s [Source],
    fragments: HashMap<String, Fragment>,
    /// How many files and fragments are open. Bounds those that contain themselves.
    depth: usize,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Fragment {
    parameters: Vec<String>,
    results: Vec<String>,
    body: Vec<Line>,
    /// Its parameters, and the locals of its body. No target may have such a name.
    locals: HashSet<String>,
    /// The variables that its body assigns to.
    written: HashSet<String>,
}

impl Assembly<'_> {
    fn include(&mut self, name: &str) -> Result<(), String> {
        let found = self.sources.iter().find(|source| source.name == name);
        let source = found.ok_or_else(|| format!("no file is named {name}"))?;
        let mut is_definition = false;
        for line in lines(source) {
            if directive(&line.text, "fragment").is_some() {
                is_definition = true;
            } else if directive(&line.text, "end").is_some() {
                is_definition = false;
            } else if !is_definition {
                self.line(line)?;
            }
        }
        Ok(())
    }

    /// Emits a line, or the lines that its directive produces.
    fn line(&mut self, line: Line) -> Result<(), String> {
        let at = |mistake| format!("{}:{}: {mistake}", line.path, line.number);
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(at("it contains itself".to_owned()));
        }
        if let Some(name) = directive(&line.text, "include") {
            self.include(name).map_err(at)?;
        } else if let Some(call) = directive(&line.text, "inline") {
            self.expand(call, &line).map_err(at)?;
        } else if !line.text.is_empty() && !line.text.starts_with("--") {
            let text = line.text.replace(", ", ",");
            self.lines.push(Line { text, ..line });
        }
        self.depth -= 1;
        Ok(())
    }

    fn expand(&mut self, call: &str, at: &Line) -> Result<(), String> {
        let (name, arguments, targets) = signature(call)?;
        let fragment = self.fragments.get(name).ok_or(format!("no fragment is named {name}"))?;
        if arguments.len() != fragment.parameters.len() || targets.len() != fragment.results.len() {
            let (takes, gives) = (fragment.parameters.len(), fragment.results.len());
            return Err(format!("{name} takes {takes} arguments and has {gives} results"));
        }
        // A target with the name of a local of the fragment would be written inside the expansion only.
        let mut of_targets = targets.iter().copied().flat_map(words);
        if let Some(hidden) = of_targets.find(|word| fragment.locals.contains(*word)) {
            return Err(format!("{name} has a local {hidden}, which hides the target"));
        }
        // Arguments are evaluated once, before the body.
        let bound = fragment.parameters.iter().map(String::as_str).zip(arguments);
        let (names, values): (Vec<&str>, Vec<&str>) =
            bound.filter(|(name, value)| name != value || fragment.written.contains(*name)).unzip();
        let results = fragment.results.iter().map(String::as_str);
        let replaced: HashMap<&str, &str> = results.zip(targets).collect();
        let body: Vec<Line> = fragment
            .body
            .iter()
            .map(|line| Line { text: with_words(&line.text, &replaced), ..line.clone() })
            .collect();
        let binding = format!("local {} = {}", names.join(","), values.join(","));
        let has_binding = !names.is_empty();
        self.emit("do".to_owned(), at);
        if has_binding {
            self.emit(binding, at);
        }
        for line in body {
            self.line(line)?;
        }
        self.emit("end".to_owned(), at);
        Ok(())
    }

    fn emit(&mut self, text: String, at: &Line) {
        self.lines.push(Line { text, ..at.clone() });
    }
}

impl Fragment {
    fn new(parameters: &[&str], results: &[&str]) -> Fragment {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        Fragment {
            parameters: owned(parameters),
            results: owned(results),
            body: Vec::new(),
            locals: owned(parameters).into_iter().collect(),
            written: HashSet::new(),
        }
    }

    /// Records the names that a line declares or assigns.
    fn note_names(&mut self, line: &str) {
        let (left, _) = line.split_once(" = ").unwrap_or((line, ""));
        let names = |text: &str| words(text).map(str::to_owned).collect::<Vec<_>>();
        if let Some(declared) = left.strip_prefix("local ").or_else(|| left.strip_prefix("for ")) {
            self.locals.extend(names(declared));
        } else if let Some(call) = directive(line, "inline") {
            self.written.extend(names(call.rsplit_once(" -> ").map_or("", |(_, targets)| targets)));
        } else if left != line {
            self.written.extend(names(left));
        }
    }
}

/// Collects the fragments of all files.
fn fragments(sources: &[Source]) -> Result<HashMap<String, Fragment>, String> {
    let mut fragments = HashMap::new();
    for source in sources {
        let mut open: Option<(String, Fragment)> = None;
        for line in lines(source) {
            let at = |mistake| format!("{}:{}: {mistake}", line.path, line.number);
            if let Some(head) = directive(&line.text, "fragment") {
                let (name, parameters, results) = signature(head).map_err(at)?;
                open = Some((name.to_owned(), Fragment::new(&parameters, &results)));
            } else if directive(&line.text, "end").is_some() {
                let (name, fragment) = open.take().ok_or(at("no fragment is open".to_owned()))?;
                if fragments.contains_key(&name) {
                    return Err(at(format!("{name} is defined twice")));
                }
                fragments.insert(name, fragment);
            } else if let Some((_, fragment)) = &mut open {
                fragment.note_names(&line.text);
                fragment.body.push(line);
            }
        }
        if let Some((name, _)) = open {
            return Err(format!("{}: {name} has no end", source.path));
        }
    }
    Ok(fragments)
}

/// Returns the text after a directive of a kind.
fn directive<'t>(line: &'t str, kind: &str) -> Option<&'t str> {
    let rest = line.strip_prefix("-- @")?.strip_prefix(kind)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(' ') }
}

/// Splits `name(a, b) -> c, d` into the name, the arguments, and the results.
fn signature(text: &str) -> Result<(&str, Vec<&str>, Vec<&str>), String> {
    let (call, results) = text.rsplit_once(" -> ").unwrap_or((text, ""));
    let inner = call.split_once('(').and_then(|(name, rest)| Some((name, rest.strip_suffix(')')?)));
    let (name, inner) = inner.ok_or_else(|| format!("{text:?} is not NAME(...) -> ..."))?;
    Ok((name, listed(inner), listed(results)))
}

/// Splits a text at the commas outside brackets.
fn listed(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_usize, 0);
    for (at, char) in text.char_indices() {
        match char {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns the lines of a file, with each directive joined into one line.
fn lines(source: &Source) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut goes_on = false;
    for (number, text) in (1..).zip(source.text.lines().map(str::trim)) {
        match lines.last_mut().filter(|_| goes_on) {
            Some(directive) => {
                directive.text.push(' ');
                directive.text.push_str(text.trim_start_matches("--").trim_start());
            }
            None => lines.push(Line { text: text.to_owned(), path: source.path, number }),
        }
        let is_directive = lines.last().is_some_and(|line| line.text.starts_with("-- @"));
        goes_on = is_directive && text.ends_with([',', '>']);
    }
    lines
}

/// Returns the names of variables in a text. A name after a dot is a field, not a variable.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !is_of_word(char) && char != '.')
        .map(|path| path.split('.').next().unwrap_or(path))
}

/// Replaces variables in a text.
fn with_words(text: &str, replaced: &HashMap<&str, &str>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_of_word) {
        let (before, from) = rest.split_at(start);
        let (word, after) = from.split_at(from.find(|c| !is_of_word(c)).unwrap_or(from.len()));
        result.push_str(before);
        let is_field = result.ends_with('.') && !result.ends_with("..");
        result.push_str(replaced.get(word).filter(|_| !is_field).unwrap_or(&word));
        rest = after;
    }
    result.push_str(rest);
    result
}

fn is_of_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

/// More than any real nesting of files and fragments.
const DEPTH_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn assembled(text: &'static str) -> Result<Vec<String>, String> {
        let other = Source { name: "other", path: "other.lua", text: "local other = 1\n" };
        let first = Source { name: "first", path: "first.lua", text };
        Ok(assemble(&[first, other])?.into_iter().map(|line| line.text).collect())
    }

    #[test]
    fn an_expansion_binds_its_arguments_and_writes_its_targets() {
        let lines = assembled(
            "-- @fragment drain(elapsed, n) -> used, rest
            rest = elapsed % n
            used = used - (elapsed - rest) / n -- a.used stays
            -- @end
            local left, part = f(1, 2), 0
            -- @inline drain(now - f(a, b),
            --     n) -> cell.left, part
            return a.used",
        );
        let expected = [
            "local left,part = f(1,2),0",
            "do",
            "local elapsed = now - f(a, b)",
            "part = elapsed % n",
            "cell.left = cell.left - (elapsed - part) / n -- a.used stays",
            "end",
            "return a.used",
        ];
        assert_eq!(lines.unwrap(), expected);
    }

    #[test]
    fn fragments_and_files_nest() {
        let lines = assembled(
            "-- @fragment twice(a) -> b
            -- @inline once(a) -> b
            b = b .. b
            -- @end
            -- @fragment once(a) -> b
            b = a
            -- @end
            -- @include other
            -- @inline twice(other) -> x",
        );
        let expected =
            ["local other = 1", "do", "local a = other", "do", "x = a", "end", "x = x .. x", "end"];
        assert_eq!(lines.unwrap(), expected);
    }

    #[test]
    fn binds_an_argument_named_like_its_parameter_if_it_is_written() {
        let lines = assembled(
            "-- @fragment least(a, b, c) -> d
            b = a
            -- @inline set(a) -> c
            d = b + c
            -- @end
            -- @fragment set(a) -> e
            e = a
            -- @end
            -- @inline least(a, b, c) -> x",
        );
        let expected = ["do", "local b,c = b,c", "b = a", "do", "c = a", "end", "x = b + c", "end"];
        assert_eq!(lines.unwrap(), expected);
    }

    #[test]
    fn each_line_keeps_its_file_and_number() {
        let text = "\n-- a comment\n  local a\n-- @include other\n";
        let first = Source { name: "first", path: "first.lua", text };
        let other = Source { name: "other", path: "other.lua", text: "\nlocal b" };
        let origins = assemble(&[first, other]).unwrap();
        let origins: Vec<_> = origins.iter().map(|line| (line.path, line.number)).collect();
        assert_eq!(origins, [("first.lua", 3), ("other.lua", 2)]);
    }

    #[test]
    fn reports_a_mistake_with_its_line() {
        let fragment = "-- @fragment f(a) -> b\nlocal c, d = a\nb = c\n-- @end\n";
        for (rest, expected) in [
            ("-- @include nothing", "no file is named nothing"),
            ("-- @include first", "it contains itself"),
            ("-- @inline g(1) -> x", "no fragment is named g"),
            ("-- @inline f(1, 2) -> x", "f takes 1 arguments and has 1 results"),
            ("-- @inline f(1)", "f takes 1 arguments and has 1 results"),
            ("-- @inline f(1) -> d", "f has a local d, which hides the target"),
            ("-- @inline f(1) -> a.x", "f has a local a, which hides the target"),
            ("-- @inline f 1", "\"f 1\" is not NAME(...) -> ..."),
            ("-- @fragment f()\n-- @end", "f is defined twice"),
            ("-- @fragment h()", "first.lua: h has no end"),
            ("-- @end", "no fragment is open"),
        ] {
            let text = String::leak(format!("{fragment}{rest}\n"));
            let mistake = assembled(text).unwrap_err();
            assert!(mistake.starts_with("first.lua:"), "{rest}: {mistake}");
            assert!(mistake.ends_with(expected), "{rest}: {mistake}");
        }
    }
}
