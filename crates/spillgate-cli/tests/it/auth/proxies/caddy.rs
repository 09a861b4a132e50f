//! Caddy: forward_auth.

use super::{Rig, program};

#[test]
#[ignore = "needs caddy"]
fn caddy_limits_as_documented() {
    let caddy = program("SPILLGATE_CADDY", "caddy");
    let rig = Rig::new("x-forwarded");
    let site = rig.recipe("caddy/fail-open.Caddyfile");
    let file = rig.write("Caddyfile", &format!("{{\n\tadmin off\n\tauto_https off\n}}\n{site}"));
    let _caddy = rig.start(&caddy, &["run", "--adapter", "caddyfile", "--config", &file]);
    rig.check_limits();
    rig.check_addresses();
}
