//! Tokens of users that have shown their password. They live in memory, as etcd's simple tokens do:
//! after a restart clients show their password again, which etcd's clients do by themselves.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::password::{NoRandomness, random};

/// How long a token is good after it was used last.
const LIFETIME: Duration = Duration::from_mins(5);
/// Most tokens; the oldest gives way.
const TOKENS: usize = 10_000;

struct Token {
    user: String,
    /// Hash of the password that was shown for it.
    hash: Bytes,
    used: Instant,
}

/// All tokens.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<HashMap<String, Token>>);

impl Tokens {
    /// A new token for a user whose password has this hash.
    pub(crate) fn give(
        &self,
        user: &str,
        hash: Bytes,
        now: Instant,
    ) -> Result<String, NoRandomness> {
        let token = format!("{:032x}", u128::from_le_bytes(random::<16>()?));
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|_, token| now.saturating_duration_since(token.used) < LIFETIME);
        if tokens.len() >= TOKENS {
            let oldest = tokens.iter().min_by_key(|(_, token)| token.used);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                tokens.remove(&oldest);
            }
        }
        tokens.insert(token.clone(), Token { user: user.to_owned(), hash, used: now });
        Ok(token)
    }

    /// Whose token it is, if it is good; it is good for longer now. `is_current` tells whether a
    /// user still has the password that was shown.
    pub(crate) fn user(
        &self,
        token: &str,
        now: Instant,
        is_current: impl FnOnce(&str, &Bytes) -> bool,
    ) -> Option<String> {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = tokens.get_mut(token)?;
        let too_old = now.saturating_duration_since(found.used) >= LIFETIME;
        if too_old || !is_current(&found.user, &found.hash) {
            tokens.remove(token);
            return None;
        }
        found.used = now;
        Some(found.user.clone())
    }

    /// Takes back the tokens of one user, or of all.
    pub(crate) fn revoke(&self, user: Option<&str>) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|_, token| user.is_some_and(|user| token.user != user));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lives_while_it_is_used_and_ends_with_its_user() {
        let (tokens, start) = (Tokens::default(), Instant::now());
        let token = tokens.give("u", Bytes::from("one"), start).unwrap();
        let other = tokens.give("v", Bytes::from("two"), start).unwrap();
        let later = start + LIFETIME / 2;
        assert_eq!(tokens.user(&token, later, |_, _| true).as_deref(), Some("u"));
        assert_eq!(tokens.user(&token, start + LIFETIME, |_, _| true).as_deref(), Some("u"));
        assert_eq!(tokens.user(&other, start + LIFETIME, |_, _| true), None);
        assert_eq!(tokens.user("guessed", start, |_, _| true), None);
        tokens.revoke(Some("u"));
        assert_eq!(tokens.user(&token, start + LIFETIME, |_, _| true), None);
    }

    #[test]
    fn a_token_ends_with_the_password_that_was_shown_for_it() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let token = tokens.give("u", Bytes::from("one"), now).unwrap();
        let has =
            |hash: &'static str| move |user: &str, shown: &Bytes| user == "u" && shown == hash;
        assert_eq!(tokens.user(&token, now, has("one")).as_deref(), Some("u"));
        assert_eq!(tokens.user(&token, now, has("two")), None);
        assert_eq!(tokens.user(&token, now, has("one")), None, "it is gone for good");
    }
}
