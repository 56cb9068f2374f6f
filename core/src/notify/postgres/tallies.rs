//! Reads what became of the messages of tenants.

use std::collections::HashMap;

use sqlx::Row;

use super::Deliveries;
use crate::jobs::Error;
use crate::notify::TenantFeedback;

pub(super) const TENANTS: &str = "
select tenant, sum(accepted)::bigint as accepted, sum(bounced)::bigint as bounced, sum(complained)::bigint as complained,
    sum(unsubscribed)::bigint as unsubscribed
from flyball.tenant_tally
where tenant = any($1) and hour > now() - interval '24 hours'
group by tenant";

impl Deliveries {
    /// Returns what became of the messages of these tenants within 24 hours; a tenant without any
    /// is absent.
    pub async fn feedback(
        &self,
        tenants: &[String],
    ) -> Result<HashMap<String, TenantFeedback>, Error> {
        let rows = sqlx::query(TENANTS)
            .bind(tenants)
            .fetch_all(&self.db)
            .await?;
        let mut feedback = HashMap::with_capacity(rows.len());
        for row in &rows {
            let counts = TenantFeedback {
                accepted: row.try_get("accepted")?,
                bounced: row.try_get("bounced")?,
                complained: row.try_get("complained")?,
                unsubscribed: row.try_get("unsubscribed")?,
            };
            feedback.insert(row.try_get("tenant")?, counts);
        }
        Ok(feedback)
    }
}
