//! nginx: `auth_request`, which accepts only 401 and 403 as denials.

use std::path::Path;

use spillgate_testkit::Process;

use super::{Client, Rig, get, program};

#[test]
#[ignore = "needs nginx"]
fn nginx_limits_as_documented() {
    let nginx = program("SPILLGATE_NGINX", "nginx");
    let rig = Rig::new("x-original");
    let _nginx = start(&rig, &nginx);
    rig.check_limits();
    rig.check_addresses();
}

/// The fields are the client's: with 101 of them the answer was 431, which `auth_request` turns into 500.
#[test]
#[ignore = "needs nginx"]
fn nginx_limits_a_request_of_many_fields_like_any_other() {
    let nginx = program("SPILLGATE_NGINX", "nginx");
    let rig = Rig::new("x-original");
    let _nginx = start(&rig, &nginx);
    let names: Vec<String> = (0..300).map(|number| format!("X-Field-{number}")).collect();
    let ask = |path: &str, fields: usize| {
        let fields: Vec<_> = names[..fields].iter().map(|name| (name.as_str(), "v")).collect();
        get(&mut Client::connect(rig.port).unwrap(), path, &fields).unwrap().status
    };
    for _ in 0..2 {
        assert_eq!(ask("/login", 240), 200);
    }
    assert_eq!(ask("/login", 240), 429);
    assert_eq!(ask("/other", 240), 200);
    // Beyond the bound no request passes, with or without quota.
    for path in ["/login", "/other"] {
        assert_eq!(ask(path, 300), 503, "{path}");
    }
    assert_eq!(ask("/other", 0), 200);
}

#[test]
#[ignore = "needs nginx"]
fn nginx_fails_open_while_spillgate_is_down() {
    let nginx = program("SPILLGATE_NGINX", "nginx");
    let rig = Rig::new("x-original");
    let _nginx = start_with(&rig, &nginx, &rig.recipe("nginx/fail-open.conf"));
    let ask = || get(&mut Client::connect(rig.port).unwrap(), "/login", &[]).unwrap().status;
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    let port = rig.port;
    drop(rig.spillgate);
    let reply = get(&mut Client::connect(port).unwrap(), "/login", &[]).unwrap();
    assert_eq!(reply.status, 200);
}

fn start(rig: &Rig, nginx: &Path) -> Process {
    start_with(rig, nginx, &rig.recipe("nginx/fail-closed.conf"))
}

fn start_with(rig: &Rig, nginx: &Path, server: &str) -> Process {
    let folder = rig.folder.path().to_str().unwrap();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {folder}/{kind};\n"))
        .concat();
    let configuration = format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr warn;\nevents {{}}\n\
         http {{\naccess_log off;\n{temporary}{server}\n}}\n"
    );
    let file = rig.write("nginx.conf", &configuration);
    rig.start(nginx, &["-e", "stderr", "-p", folder, "-c", &file])
}
