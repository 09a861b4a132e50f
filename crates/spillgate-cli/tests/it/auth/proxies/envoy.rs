//! Envoy: ext_authz over HTTP.

use spillgate_testkit::eventually;

use super::{Rig, program};

#[test]
#[ignore = "needs envoy"]
fn envoy_ext_authz_limits_as_documented() {
    let envoy = program("SPILLGATE_ENVOY", "envoy");
    let rig = Rig::new("request");
    let configuration = rig.recipe("envoy/ext-authz.yaml").replace("/dev/stdout", "access.log");
    let file = rig.write("envoy.yaml", &configuration);
    let _envoy = rig.start(
        &envoy,
        &[
            "--concurrency",
            "1",
            "--use-dynamic-base-id",
            "--file-flush-interval-msec",
            "100",
            "--log-level",
            "warn",
            "-c",
            &file,
        ],
    );
    rig.check_limits();
    let denial = r#"{"limits":"\"login\";r=0;t="#;
    let log = || std::fs::read_to_string(rig.folder.path().join("access.log")).unwrap();
    eventually(|| {
        let names_it = |line: &str| line.starts_with(denial) && line.ends_with(r#""status":429}"#);
        log().lines().any(names_it)
    });
}
