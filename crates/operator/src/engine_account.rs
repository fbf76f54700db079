//! Engines that show the token of their pod's service account.
//!
//! The kubelet of a node gets tokens only for pods of that node, and the API server writes the name
//! of the node into each: whoever takes over a node has the token of that node's engine, and of no
//! other. The token is for us only (its audience), lasts an hour, and ends with its pod.

use api::{ReviewError, TokenReviewer};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use model::NodeName;

/// For whom the tokens of engines are.
pub const AUDIENCE: &str = "holdfast";
/// Where the API server says on which node the pod of a token runs.
const NODE: &str = "authentication.kubernetes.io/node-name";

/// The service account of the engines' pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineAccount {
    namespace: String,
    name: String,
}

/// What is no service account.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a service account; name one like holdfast/holdfast-engine")]
pub struct InvalidAccount(String);

impl std::str::FromStr for EngineAccount {
    type Err = InvalidAccount;

    fn from_str(text: &str) -> Result<EngineAccount, InvalidAccount> {
        let is_name = |part: &&str| !part.is_empty() && !part.contains(['/', ':']);
        match text.split_once('/') {
            Some((namespace, name)) if [namespace, name].iter().all(is_name) => {
                Ok(EngineAccount { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(InvalidAccount(text.to_owned())),
        }
    }
}

impl EngineAccount {
    /// The node of whoever holds a token that was reviewed so.
    fn node(&self, status: &TokenReviewStatus) -> Option<NodeName> {
        let is_for_us = status.audiences.iter().flatten().any(|audience| audience == AUDIENCE);
        let user = status.user.as_ref()?;
        let name = format!("system:serviceaccount:{}:{}", self.namespace, self.name);
        if status.authenticated != Some(true) || !is_for_us || user.username.as_ref()? != &name {
            return None;
        }
        let [node] = user.extra.as_ref()?.get(NODE)?.as_slice() else { return None };
        node.parse().ok()
    }
}

/// Asks the API server whose tokens are.
pub struct EngineTokens {
    account: EngineAccount,
    reviews: Api<TokenReview>,
}

impl EngineTokens {
    /// With the rights of the pod that this runs in; it must be allowed to create `TokenReviews`.
    pub async fn of(account: EngineAccount) -> Result<EngineTokens, crate::OperatorError> {
        let client = Client::try_from(kube::Config::infer().await?)?;
        Ok(EngineTokens { account, reviews: Api::all(client) })
    }
}

impl TokenReviewer for EngineTokens {
    fn review<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<NodeName>, ReviewError>> {
        let spec = TokenReviewSpec {
            token: Some(token.to_owned()),
            audiences: Some(vec![AUDIENCE.to_owned()]),
        };
        let review = TokenReview { spec, ..TokenReview::default() };
        async move {
            let answer = self.reviews.create(&PostParams::default(), &review).await;
            let answer = answer.map_err(|error| ReviewError { reason: error.to_string() })?;
            Ok(answer.status.as_ref().and_then(|status| self.account.node(status)))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whose a token is, if the API server says so with this changed.
    fn node(change: &serde_json::Value) -> Option<String> {
        let mut said = json!({
            "authenticated": true,
            "audiences": ["holdfast"],
            "user": {
                "username": "system:serviceaccount:storage:holdfast-engine",
                "extra": { "authentication.kubernetes.io/node-name": ["node-1"] },
            },
        });
        for (key, value) in change.as_object().unwrap() {
            said[key] = value.clone();
        }
        let account: EngineAccount = "storage/holdfast-engine".parse().unwrap();
        account.node(&serde_json::from_value(said).unwrap()).map(|node| node.to_string())
    }

    #[test]
    fn a_token_is_the_engine_of_the_node_of_its_pod() {
        assert_eq!(node(&json!({})).as_deref(), Some("node-1"));
        let name = "system:serviceaccount:storage:holdfast-engine";
        let other = "system:serviceaccount:other:holdfast-engine";
        let at = "authentication.kubernetes.io/node-name";
        for change in [
            json!({ "authenticated": false }),
            json!({ "authenticated": null }),
            json!({ "audiences": ["https://kubernetes.default.svc"] }),
            json!({ "audiences": null }),
            json!({ "user": null }),
            json!({ "user": { "username": other, "extra": { at: ["node-1"] } } }),
            json!({ "user": { "username": name } }),
            json!({ "user": { "username": name, "extra": { at: [] } } }),
            json!({ "user": { "username": name, "extra": { at: ["*"] } } }),
        ] {
            assert_eq!(node(&change), None, "{change}");
        }
    }

    #[test]
    fn what_is_no_account_is_refused_with_an_example() {
        for bad in ["", "engine", "a/", "/b", "a/b/c", "system:serviceaccount:a:b"] {
            let refused = bad.parse::<EngineAccount>().unwrap_err().to_string();
            assert!(refused.contains("holdfast/holdfast-engine"), "{refused}");
        }
    }
}
