//! Settings in the process's environment. A variable `SPILLGATE_…` that names no setting keeps a command from starting:
//! otherwise a typing mistake would silently leave a default in force.

use std::ffi::OsString;

use super::Given;
use super::problem::{Origin, Problem};
use super::table::{closest, gone, setting_names};

/// Returns the settings, ordered by name, and the problems of the variables.
pub fn settings_in(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> (Vec<Given>, Vec<Problem>) {
    let (mut given, mut problems) = (Vec::new(), Vec::new());
    for (variable, value) in variables {
        let Ok(variable) = variable.into_string() else { continue };
        let Some(rest) = variable.strip_prefix(PREFIX) else { continue };
        // Some launchers pass an unset variable as an empty one. Commands of operators read the token.
        if value.is_empty() || rest == TOKEN_OF_COMMANDS {
            continue;
        }
        let name = rest.replace("__", ".").to_lowercase();
        let origin = Origin::Variable(variable.clone());
        let wrong = |message: String| Problem::new(&origin, &name, message);
        match value.into_string() {
            Err(_) => problems.push(wrong("its value is not UTF-8; write it anew".to_owned())),
            Ok(value) if setting_names().any(|known| known == name) => {
                given.push(Given { name, value: Some(value), origin });
            }
            Ok(value) if is_of_kubernetes(rest, &value) => {}
            Ok(_) => problems.push(wrong(no_setting(&name))),
        }
    }
    given.sort_by(|a, b| a.name.cmp(&b.name));
    problems.sort_by_key(Problem::to_string);
    (given, problems)
}

/// Returns whether Kubernetes sets this variable: it sets some in each container for every Service whose name begins
/// with `spillgate`, such as `SPILLGATE_SERVICE_HOST`, `SPILLGATE_SERVICE_PORT_HTTP`, `SPILLGATE_PORT` and
/// `SPILLGATE_PORT_8080_TCP_ADDR`.
fn is_of_kubernetes(rest: &str, value: &str) -> bool {
    let words: Vec<&str> = rest.split('_').collect();
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let is_address = || value.parse::<std::net::IpAddr>().is_ok();
    let is_protocol = |word: &str| ["TCP", "UDP", "SCTP"].contains(&word);
    let has_scheme =
        || ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    (0..words.len()).any(|at| match &words[at..] {
        ["SERVICE", "HOST"] => is_address(),
        ["SERVICE", "PORT", ..] => is_port(value),
        ["PORT"] => has_scheme(),
        ["PORT", port, protocol] if is_port(port) && is_protocol(protocol) => has_scheme(),
        ["PORT", port, protocol, part] if is_port(port) && is_protocol(protocol) => match *part {
            "PROTO" => is_protocol(&value.to_ascii_uppercase()),
            "PORT" => is_port(value),
            "ADDR" => is_address(),
            _ => false,
        },
        _ => false,
    })
}

/// Returns the message about a variable that names no setting, with the variable or flag that it most likely means.
fn no_setting(name: &str) -> String {
    if let Some(remedy) = gone(name) {
        return format!("no such setting; {remedy}");
    }
    let remedy = match meant_setting(name) {
        _ if name == "config" => "name the file with the flag --config, and ".to_owned(),
        Some(setting) => format!("did you mean {}? ", variable_of(setting)),
        None => String::new(),
    };
    format!("no such setting; {remedy}unset the variable if it is not for Spillgate")
}

/// Returns the setting that a name most likely means: the closest one, or the only one in any section with this name.
fn meant_setting(name: &str) -> Option<&'static str> {
    closest(name).or_else(|| {
        let in_section = |setting: &&str| {
            setting.strip_suffix(name).is_some_and(|section| section.ends_with('.'))
        };
        let mut namesakes = setting_names().filter(in_section);
        namesakes.next().filter(|_| namesakes.next().is_none())
    })
}

fn variable_of(setting: &str) -> String {
    format!("{PREFIX}{}", setting.replace('.', "__").to_uppercase())
}

const PREFIX: &str = "SPILLGATE_";
const TOKEN_OF_COMMANDS: &str = "ADMIN_TOKEN";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variable: &str, value: &str) -> (Vec<Given>, Vec<Problem>) {
        settings_in([(OsString::from(variable), OsString::from(value))].into_iter())
    }

    #[test]
    fn a_variable_that_is_no_setting_is_named_with_the_closest_one() {
        for (variable, closest) in [
            ("SPILLGATE_STORE_URL", "SPILLGATE_STORE__URL"),
            ("SPILLGATE_STORE__ULR", "SPILLGATE_STORE__URL"),
            ("SPILLGATE_SERVER_HTTP", "SPILLGATE_SERVER__HTTP"),
            ("SPILLGATE_SERVER__RESP_PASSWORD_FILE", "SPILLGATE_SERVER__RESP__PASSWORD_FILE"),
            ("SPILLGATE_DATA_TOKEN_FILE", "SPILLGATE_SERVER__DATA_TOKEN_FILE"),
        ] {
            let (given, problems) = read(variable, "x");
            assert!(given.is_empty(), "{variable}");
            let message = problems[0].to_string();
            assert!(message.starts_with(&format!("environment, {variable}: ")), "{message}");
            assert!(message.contains(&format!("did you mean {closest}")), "{message}");
        }
        for (variable, message) in [
            (
                "SPILLGATE_FOO__BAR",
                "no such setting; unset the variable if it is not for Spillgate",
            ),
            ("SPILLGATE_TIMEOUT", "no such setting; unset the variable"),
            (
                "SPILLGATE_CONFIG",
                "no such setting; name the file with the flag --config, and unset",
            ),
        ] {
            let found = read(variable, "x").1[0].to_string();
            assert!(found.contains(message), "{found}");
        }
        assert!(read("SPILLGATE_STORE_URL", "").1.is_empty(), "set to nothing is not set");
        assert!(read("SPILLGATE", "x").1.is_empty());
        let (given, problems) = read("SPILLGATE_ADMIN_TOKEN", "x");
        assert!(given.is_empty() && problems.is_empty(), "for commands of operators");
    }

    #[test]
    fn variables_of_kubernetes_services_are_left_alone() {
        for (variable, value) in [
            ("SPILLGATE_SERVICE_HOST", "10.0.0.1"),
            ("SPILLGATE_SERVICE_PORT", "8080"),
            ("SPILLGATE_SERVICE_PORT_HTTP", "8080"),
            ("SPILLGATE_PORT", "tcp://10.0.0.1:8080"),
            ("SPILLGATE_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("SPILLGATE_PORT_8080_TCP_PROTO", "tcp"),
            ("SPILLGATE_PORT_8080_TCP_PORT", "8080"),
            ("SPILLGATE_PORT_8080_TCP_ADDR", "fd00::1"),
            ("SPILLGATE_STORE_PORT", "tcp://10.0.0.1:6379"),
            ("SPILLGATE_STORE_SERVICE_HOST", "10.0.0.1"),
            ("SPILLGATE_STORE_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ] {
            let (given, problems) = read(variable, value);
            assert!(given.is_empty() && problems.is_empty(), "{variable}");
        }
        for (variable, value) in [
            ("SPILLGATE_STORE_PORT", "6379"),
            ("SPILLGATE_PORT_HTTP_TCP", "tcp://10.0.0.1:8080"),
            ("SPILLGATE_PORT_8080_TCP_URL", "tcp://10.0.0.1:8080"),
            ("SPILLGATE_SERVICE_HOST", "redis://10.0.0.1"),
        ] {
            assert_eq!(read(variable, value).1.len(), 1, "{variable}={value}");
        }
    }

    #[test]
    fn every_setting_is_read_by_its_variable() {
        for name in setting_names() {
            let variable = format!("{PREFIX}{}", name.replace('.', "__").to_uppercase());
            let (given, problems) = read(&variable, "x");
            assert!(problems.is_empty(), "{variable}");
            assert_eq!(given[0].name, name);
        }
        let message = read("SPILLGATE_STORE__RING__NODES__0__URL", "x").1[0].to_string();
        assert!(message.contains("no such setting; write each node as a string"), "{message}");
    }
}
