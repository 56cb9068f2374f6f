//! Throttles that belong to tenants. The name of a throttle contains its owner, so every process,
//! Postgres, and a stream that has only names agree about it.

/// The beginnings of the throttles of a tenant's messages, of the messages of its channels and of
/// its connections, before the tenant.
const MESSAGES: [&str; 3] = ["notify:", "ws:", "ws-connections:"];

/// The beginning of a tenant's other throttles, before the tenant and a slash.
const OTHERS: &str = "tenant:";

/// Returns the tenant that owns a throttle: `notify:<tenant>`, `ws:<tenant>`,
/// `ws-connections:<tenant>` or `tenant:<tenant>/<name>`; `None` for a shared one. `flyball.throttle_tenant` is the same in SQL.
pub fn tenant_of(throttle: &str) -> Option<&str> {
    let rest = |beginning: &&str| throttle.strip_prefix(*beginning);
    let tenant = match MESSAGES.iter().find_map(rest) {
        Some(tenant) => tenant,
        None => throttle.strip_prefix(OTHERS)?.split_once('/')?.0,
    };
    (!tenant.is_empty()).then_some(tenant)
}

/// Returns true for a throttle that a tenant may make and turn itself. `notify:<tenant>` is the
/// operators' limit on the tenant.
pub fn is_made_by(throttle: &str, tenant: &str) -> bool {
    throttle.starts_with(OTHERS) && tenant_of(throttle) == Some(tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_belongs_to_the_tenant_in_its_name() {
        for (throttle, tenant) in [
            ("notify:acme", Some("acme")),
            ("notify:a/b:c", Some("a/b:c")),
            ("ws:acme", Some("acme")),
            ("ws-connections:acme", Some("acme")),
            ("ws:", None),
            ("tenant:acme/mail", Some("acme")),
            ("tenant:acme/", Some("acme")),
            ("tenant:a:b/mail", Some("a:b")),
            ("tenant:a/b/mail", Some("a")),
            ("tenant:acme", None),
            ("tenant:/mail", None),
            ("notify:", None),
            ("mail", None),
            ("notify", None),
            ("api:read:acme", None),
        ] {
            assert_eq!(tenant_of(throttle), tenant, "{throttle}");
        }
        assert!(is_made_by("tenant:acme/mail", "acme"));
        assert!(!is_made_by("notify:acme", "acme") && !is_made_by("tenant:b/mail", "acme"));
    }
}
