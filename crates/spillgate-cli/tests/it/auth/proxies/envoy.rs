//! Envoy: ext_authz over HTTP.

use spillgate_testkit::eventually;

use super::{Rig, program};

#[test]
#[ignore = "needs envoy"]
fn envoy_ext_authz_limits_as_documented() {
    let envoy = program("SPILLGATE_ENVOY", "envoy");
    let rig = Rig::new("request");
    let filter = rig.block("yaml", "ext_authz").replace('\n', "\n          ");
    let access_log = rig.block("yaml", "access_log").replace("/dev/stdout", "access.log");
    let cluster = |name: &str, port: u16| {
        format!(
            "  - name: {name}\n    load_assignment:\n      cluster_name: {name}\n      endpoints: [{{ lb_endpoints: [{{ endpoint: \
             {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}] }}]\n"
        )
    };
    let configuration = format!(
        "static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          use_remote_address: true
          {access_log}
          route_config: {{ virtual_hosts: [{{ name: all, domains: [\"*\"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: application }} }}] }}] }}
          http_filters:
          - {filter}
          - name: envoy.filters.http.router
            typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
{application}{spillgate}",
        port = rig.port,
        access_log = access_log.trim_end().replace('\n', "\n          "),
        filter = filter.trim_end().replace("\n          ", "\n            "),
        application = cluster("application", rig.application),
        spillgate = cluster("spillgate", rig.spillgate.port),
    );
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
