//! Traefik: ForwardAuth.

use super::{Rig, program};

#[test]
#[ignore = "needs traefik"]
fn traefik_limits_as_documented() {
    let traefik = program("SPILLGATE_TRAEFIK", "traefik");
    let rig = Rig::new("x-forwarded");
    let dynamic = rig.write("dynamic.yaml", &rig.recipe("traefik/fail-open.yaml"));
    let port = rig.port;
    let fixed = rig.recipe("traefik/static.yaml").replace("/etc/traefik/spillgate.yaml", &dynamic);
    let fixed = rig.write("traefik.yaml", &fixed);
    let _traefik = rig.start(&traefik, &["--configFile", &fixed]);
    // Traefik listens before it has read its rules.
    spillgate_testkit::eventually(|| {
        super::get(&mut crate::client::Client::connect(port).unwrap(), "/up", &[])
            .is_ok_and(|reply| reply.status == 200)
    });
    rig.check_limits();
    rig.check_addresses();
}
