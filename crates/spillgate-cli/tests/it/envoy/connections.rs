//! Health, reflection, tokens, TLS, bounds and shutdown.

use std::time::Duration;

use tonic::{Code as Status, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::client::{Caller, Code, descriptor, in_domain};
use crate::server::{Server, TempFile, spillgate};

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const PATIENCE: Duration = Duration::from_secs(20);

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[test]
fn health_covers_the_whole_and_the_service() {
    let server = Server::start(&[]);
    let caller = Caller::of(&server);
    let mut health = HealthClient::new(caller.channel());
    for service in ["", SERVICE] {
        let answer = caller.run(health.check(of(service))).unwrap();
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving, "{service:?}");
    }
    assert_eq!(caller.run(health.check(of("other"))).unwrap_err().code(), Status::NotFound);
}

#[test]
fn a_health_watcher_sees_the_server_leave_before_it_ends() {
    let server = Server::start(&[]);
    let caller = Caller::of(&server);
    let mut health = HealthClient::new(caller.channel());
    let mut watch = caller.run(health.watch(of(SERVICE))).unwrap().into_inner();
    let mut next = || {
        let message = caller.run(async { tokio::time::timeout(PATIENCE, watch.message()).await });
        message.unwrap().unwrap().map(|answer| answer.status())
    };
    assert_eq!(next(), Some(ServingStatus::Serving));
    let stopping = std::thread::spawn(move || server.stop());
    assert_eq!(next(), Some(ServingStatus::NotServing));
    assert_eq!(next(), None, "the stream ends");
    assert!(stopping.join().unwrap().success());
}

#[test]
fn calls_in_progress_at_the_end_are_answered() {
    let server = Server::start(&[]);
    let caller = Caller::of(&server);
    let ip = [descriptor(&[("remote_address", "::1")])];
    assert_eq!(caller.ask(&ip).overall_code(), Code::Ok);
    let stopping = std::thread::spawn(move || server.stop());
    while !stopping.is_finished() {
        match caller.try_ask(Request::new(in_domain("default", &ip))) {
            Ok(answer) => assert_eq!(answer.overall_code(), Code::Ok),
            // The client found out that the call was never accepted. An error of the server has no source.
            Err(error) => assert!(std::error::Error::source(&error).is_some(), "{error:?}"),
        }
    }
    assert!(stopping.join().unwrap().success());
}

#[test]
fn reflection_lists_the_services() {
    let server = Server::start(&[]);
    let caller = Caller::of(&server);
    let names = services(&caller);
    let has = |name: &str| names.iter().any(|of| of == name);
    assert!(has(SERVICE) && has("grpc.health.v1.Health"), "{names:?}");
    let file = reflect(&caller, MessageRequest::FileContainingSymbol(SERVICE.to_owned()));
    assert!(matches!(file, MessageResponse::FileDescriptorResponse(_)), "{file:?}");
}

/// Returns the names of the services that reflection lists.
pub(crate) fn services(caller: &Caller) -> Vec<String> {
    let answer = reflect(caller, MessageRequest::ListServices(String::new()));
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    list.service.into_iter().map(|service| service.name).collect()
}

fn reflect(caller: &Caller, message: MessageRequest) -> MessageResponse {
    let mut reflection = ServerReflectionClient::new(caller.channel());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let answer = caller.run(async {
        let requests = tonic::codegen::tokio_stream::iter([request]);
        let answers = reflection.server_reflection_info(requests).await.unwrap();
        answers.into_inner().message().await.unwrap().unwrap()
    });
    answer.message_response.unwrap()
}

#[test]
fn an_api_with_a_token_answers_its_bearers_and_health_probes() {
    let token = "0123456789abcdef0123456789abcdef";
    let file = TempFile::new("token", token);
    let server = Server::start_command(
        spillgate(&["serve", "--http", "127.0.0.1:0"])
            .env("SPILLGATE_SERVER__DATA_TOKEN_FILE", file.path()),
    );
    let caller = Caller::of(&server);
    let ip = [descriptor(&[("remote_address", "::1")])];
    let bearer = format!("Bearer {token}");
    assert!(caller.ask_as(&[("authorization", &bearer)], &ip).is_ok());
    for wrong in [&[][..], &[("authorization", "Bearer wrong")]] {
        let error = caller.ask_as(wrong, &ip).unwrap_err();
        assert_eq!(error.code(), Status::Unauthenticated);
        assert!(error.message().contains("data_token_file"), "{error:?}");
    }
    let mut health = HealthClient::new(caller.channel());
    assert!(caller.run(health.check(of(""))).is_ok());
}

#[test]
fn an_oversized_message_is_an_error_and_the_connection_stays() {
    let server = Server::start(&[]);
    let caller = Caller::of(&server);
    let long = "x".repeat(2 << 20);
    let error = caller.ask_as(&[], &[descriptor(&[("a", &long)])]).unwrap_err();
    assert_eq!(error.code(), Status::ResourceExhausted, "{error:?}");
    assert_eq!(caller.ask(&[descriptor(&[("a", "b")])]).overall_code(), Code::Ok);
}

#[test]
fn many_calls_share_one_connection() {
    let server = Server::start(&[]);
    let caller = Caller::of(&server);
    let ip = [descriptor(&[("remote_address", "::1")])];
    let answered = std::thread::scope(|scope| {
        let calls: Vec<_> =
            (0..64).map(|_| scope.spawn(|| caller.ask(&ip).overall_code())).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(answered, vec![Code::Ok; 64]);
}

#[test]
fn the_address_may_be_in_the_grpc_table() {
    let file = TempFile::new("table.toml", "[server.grpc]\naddress = \"off\"\n");
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--config", file.path()]);
    let server = Server::start_command(command.env_remove("SPILLGATE_SERVER__GRPC__ADDRESS"));
    assert_eq!(server.grpc_port, None, "{}", server.ready);
}

#[test]
fn an_invalid_choice_is_reported_with_the_valid_ones() {
    let file = TempFile::new("choice.toml", "[server.grpc]\non_outage_deny = \"error\"\n");
    let output = spillgate(&["serve", "--config", file.path()]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("\"over-limit\", \"unavailable\"; write one of these"), "{errors}");
}
