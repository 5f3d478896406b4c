//! Finds the operation for a method and a path in the table of operations.

use hyper::Method;

use super::problem::Problem;
use crate::ops::{OPERATIONS, OperationSpec};

/// Finds the operation for a method and a path.
///
/// # Errors
/// Returns a 404 if the path is unknown, or a 405 if the path does not accept the method.
pub(super) fn find_operation(method: &Method, path: &str) -> Result<&'static OperationSpec, Problem> {
    let found = OPERATIONS.iter().find(|spec| spec.path == path && spec.methods().contains(&method.as_str()));
    found.ok_or_else(|| not_found(path))
}

fn not_found(path: &str) -> Problem {
    let methods: Vec<&str> =
        OPERATIONS.iter().filter(|spec| spec.path == path).flat_map(|spec| spec.methods()).copied().collect();
    if methods.is_empty() {
        let mut paths: Vec<&str> = OPERATIONS.iter().map(|spec| spec.path).collect();
        paths.dedup();
        let detail = format!("no such endpoint; available: {}", paths.join(", "));
        return Problem::not_found(detail);
    }
    Problem::method_not_allowed(path, &methods.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Op, ServerPage, Verb};
    use hyper::StatusCode;

    #[test]
    fn operations_are_found_by_path_and_method() {
        let op = |method, path| find_operation(&method, path).map(|spec| spec.op);
        assert_eq!(op(Method::POST, "/v1/check"), Ok(Op::Decide(Verb::Check)));
        assert_eq!(op(Method::HEAD, "/metrics"), Ok(Op::Page(ServerPage::Metrics)));
        assert_eq!(op(Method::POST, "/v1/enforcement"), Ok(Op::SetEnforcement));
        assert_eq!(op(Method::GET, "/v1/enforcements").unwrap_err().status(), StatusCode::NOT_FOUND);
        let wrong = op(Method::DELETE, "/v1/enforcement").unwrap_err();
        assert_eq!(wrong.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(wrong.allowed_methods().map(|methods| methods.as_bytes()), Some(&b"POST, GET, HEAD"[..]));
    }
}
