//! nginx: `auth_request`, which knows 401 and 403 only.

use super::{Rig, program};

#[test]
#[ignore = "needs nginx"]
fn nginx_limits_as_the_document_says() {
    let nginx = program("SPILLGATE_NGINX", "nginx");
    let rig = Rig::new("x-original");
    let folder = rig.folder.0.to_str().unwrap();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {folder}/{kind};\n"))
        .concat();
    let configuration = format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr warn;\nevents {{}}\n\
         http {{\naccess_log off;\n{temporary}{}\n}}\n",
        rig.block("nginx", "auth_request")
    );
    let file = rig.folder.write("nginx.conf", &configuration);
    let _nginx = rig.start(&nginx, &["-e", "stderr", "-p", folder, "-c", &file]);
    rig.tell();
    rig.tell_of_the_address();
}
