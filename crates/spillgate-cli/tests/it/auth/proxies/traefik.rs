//! Traefik: ForwardAuth.

use super::{Rig, program};

#[test]
#[ignore = "needs traefik"]
fn traefik_limits_as_the_document_says() {
    let traefik = program("SPILLGATE_TRAEFIK", "traefik");
    let rig = Rig::new("x-forwarded");
    let dynamic = rig.folder.write("dynamic.yaml", &rig.block("yaml", "forwardAuth"));
    let port = rig.port;
    let fixed = rig.folder.write(
        "traefik.yaml",
        &format!(
            "entryPoints:\n  web:\n    address: \"127.0.0.1:{port}\"\nproviders:\n  file:\n    filename: {dynamic}\n\
             global:\n  checkNewVersion: false\n  sendAnonymousUsage: false\n"
        ),
    );
    let _traefik = rig.start(&traefik, &["--configFile", &fixed]);
    // It listens before it has read its rules.
    spillgate_testkit::eventually(|| {
        super::get(&mut crate::client::Client::connect(port).unwrap(), "/up", &[])
            .is_ok_and(|reply| reply.status == 200)
    });
    rig.tell();
    rig.tell_of_the_address();
}
