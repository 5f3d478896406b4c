//! Runs the examples, which contain their own assertions.
#![allow(missing_docs, dead_code, reason = "each module is a separate program, whose `main` is called here")]

#[path = "../examples/bandwidth.rs"]
mod bandwidth;
#[path = "../examples/llm_tokens.rs"]
mod llm_tokens;
#[path = "../examples/login_attempts.rs"]
mod login_attempts;
#[path = "../examples/outgoing_calls.rs"]
mod outgoing_calls;

#[test]
fn packets_leave_evenly_and_old_packets_are_dropped() {
    bandwidth::main().unwrap();
}

#[test]
fn tokens_are_reserved_and_settled() {
    llm_tokens::main().unwrap();
}

#[test]
fn only_failed_logins_count() {
    login_attempts::main().unwrap();
}

#[test]
fn calls_start_slowly_and_speed_up() {
    outgoing_calls::main().unwrap();
}
