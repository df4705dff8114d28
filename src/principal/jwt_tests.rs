//! Tokens signed here, by keys made here.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RSA_PSS_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};

use super::*;

const NOW_S: i64 = 1_800_000_000;
const NOW_MS: i64 = NOW_S * 1000;

struct Issuer {
    ec: EcdsaKeyPair,
    ed: Ed25519KeyPair,
    rsa: RsaKeyPair,
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The two integers of an RSA key in DER, without leading zeros.
fn integers(der: &[u8]) -> (&[u8], &[u8]) {
    fn length(der: &[u8]) -> (usize, &[u8]) {
        match der[1] {
            0x82 => (usize::from(der[2]) << 8 | usize::from(der[3]), &der[4..]),
            0x81 => (usize::from(der[2]), &der[3..]),
            short => (usize::from(short), &der[2..]),
        }
    }
    fn without_zero(bytes: &[u8]) -> &[u8] {
        bytes.strip_prefix(&[0]).unwrap_or(bytes)
    }
    let (_, inside) = length(der);
    let (count, rest) = length(inside);
    let (n, rest) = rest.split_at(count);
    let (count, rest) = length(rest);
    (without_zero(n), without_zero(&rest[..count]))
}

impl Issuer {
    fn new() -> Self {
        Self {
            ec: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap(),
            ed: Ed25519KeyPair::generate().unwrap(),
            rsa: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(),
        }
    }

    fn set(&self) -> Value {
        let point = self.ec.public_key().as_ref();
        let (n, e) = integers(self.rsa.public_key().as_ref());
        json!({"keys": [
            {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
            {"kty": "RSA", "kid": "rsa", "use": "sig",
                "n": encode(n), "e": encode(e)},
            {"kty": "EC", "crv": "P-256", "kid": "ec", "alg": "ES256",
                "x": encode(&point[1..33]), "y": encode(&point[33..])},
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": encode(self.ed.public_key().as_ref())},
        ]})
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let message = signed.as_bytes();
        let random = SystemRandom::new();
        let mut rsa = vec![0; self.rsa.public_modulus_len()];
        let signature = match header["alg"].as_str().unwrap() {
            "ES256" => self.ec.sign(&random, message).unwrap().as_ref().to_vec(),
            "EdDSA" => self.ed.sign(message).as_ref().to_vec(),
            "PS256" => {
                self.rsa.sign(&RSA_PSS_SHA256, &random, message, &mut rsa).unwrap();
                rsa
            }
            _ => {
                self.rsa.sign(&RSA_PKCS1_SHA256, &random, message, &mut rsa).unwrap();
                rsa
            }
        };
        format!("{signed}.{}", encode(signature))
    }

    fn checker(&self) -> Jwt {
        let set = self.set().to_string();
        let audiences = vec!["takeback".to_owned()];
        Jwt::with_keys("https://idp".to_owned(), audiences, Required::Yes, set.as_bytes()).unwrap()
    }
}

fn claims() -> Value {
    json!({"iss": "https://idp", "sub": "agent 1", "aud": "takeback", "exp": NOW_S + 60})
}

fn with(member: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[member] = value;
    claims
}

async fn verified(jwt: &Jwt, token: &str) -> Result<String, JwtError> {
    jwt.verify(Some(token), NOW_MS).await.map(|id| id.to_string())
}

#[tokio::test]
async fn mcp_49_each_algorithm_verifies_with_the_key_of_its_kind() {
    let issuer = Issuer::new();
    let jwt = issuer.checker();
    for (algorithm, kid) in [("RS256", "rsa"), ("PS256", "rsa"), ("ES256", "ec"), ("EdDSA", "ed")] {
        for header in [json!({"alg": algorithm, "kid": kid}), json!({"alg": algorithm})] {
            let token = issuer.token(&header, &claims());
            let name = "jwt:https:%2F%2Fidp/agent%201";
            assert_eq!(verified(&jwt, &token).await.as_deref(), Ok(name), "{header}");
        }
    }
}

#[tokio::test]
async fn a_token_cannot_choose_how_it_is_checked() {
    let issuer = Issuer::new();
    let jwt = issuer.checker();
    let parts =
        |header: Value| format!("{}.{}.", encode(header.to_string()), encode(claims().to_string()));
    for header in [
        json!({"alg": "none"}),
        json!({"alg": "None", "kid": "rsa"}),
        json!({"alg": "HS256", "kid": "rsa"}),
        json!({"alg": "HS256", "kid": "secret"}),
        json!({"alg": "RS512", "kid": "rsa"}),
        json!({"alg": "", "kid": "rsa"}),
        json!({"kid": "rsa"}),
    ] {
        assert_eq!(verified(&jwt, &parts(header.clone())).await, Err(JwtError::Form), "{header}");
    }
    // Another key's name, and the right algorithm: no key fits.
    for (algorithm, kid) in [("RS256", "ec"), ("ES256", "rsa"), ("EdDSA", "rsa"), ("RS256", "no")] {
        let token = issuer.token(&json!({"alg": algorithm, "kid": kid}), &claims());
        assert_eq!(verified(&jwt, &token).await, Err(JwtError::UnknownKey), "{algorithm} {kid}");
    }
    let stranger = Issuer::new();
    for algorithm in ["RS256", "PS256", "ES256", "EdDSA"] {
        let token = stranger.token(&json!({"alg": algorithm}), &claims());
        assert_eq!(verified(&jwt, &token).await, Err(JwtError::Signature), "{algorithm}");
    }
    let critical = issuer.token(&json!({"alg": "EdDSA", "crit": ["b64"], "b64": false}), &claims());
    assert_eq!(verified(&jwt, &critical).await, Err(JwtError::Form));
}

#[tokio::test]
async fn what_a_token_says_is_held_against_what_is_configured() {
    let issuer = Issuer::new();
    let jwt = issuer.checker();
    let ok = |rest: &str| Ok(format!("jwt:https:%2F%2Fidp/{rest}"));
    let table = [
        (with("iss", json!("https://idp/")), Err(JwtError::Issuer)),
        (with("aud", json!("other")), Err(JwtError::Audience)),
        (with("aud", json!(["other", "takeback"])), ok("agent%201")),
        (with("aud", json!([])), Err(JwtError::Audience)),
        (with("aud", json!(null)), Err(JwtError::Form)),
        (with("exp", json!(NOW_S - 29)), ok("agent%201")),
        (with("exp", json!(NOW_S - 30)), Err(JwtError::Expired)),
        (with("exp", json!(1_800_000_000.5)), ok("agent%201")),
        (with("exp", json!("2100")), Err(JwtError::Form)),
        (with("exp", json!(null)), Err(JwtError::Form)),
        (with("nbf", json!(NOW_S + 30)), ok("agent%201")),
        (with("nbf", json!(NOW_S + 31)), Err(JwtError::NotYet)),
        (with("sub", json!("")), Err(JwtError::Form)),
        (with("sub", json!("a/b")), ok("a%2Fb")),
        (with("sub", json!("x".repeat(256))), Err(JwtError::Form)),
        (with("client_id", json!("c")), ok("agent%201/c")),
        (with("azp", json!("z")), ok("agent%201/z")),
    ];
    for (claims, right) in table {
        let token = issuer.token(&json!({"alg": "EdDSA", "kid": "ed"}), &claims);
        assert_eq!(verified(&jwt, &token).await, right, "{claims}");
    }
    assert_eq!(jwt.verify(None, NOW_MS).await, Err(JwtError::Missing));
    for text in ["", ".", "..", "a.b.c", "a.b", "é.é.é"] {
        assert_eq!(verified(&jwt, text).await, Err(JwtError::Form), "{text}");
    }
    let long = format!("{}.{}.{}", "a".repeat(MAX_TOKEN), "b", "c");
    assert_eq!(verified(&jwt, &long).await, Err(JwtError::Form));
}

#[tokio::test]
async fn a_remembered_token_expires_and_is_forgotten_with_its_key() {
    let issuer = Issuer::new();
    let jwt = issuer.checker();
    let token = issuer.token(&json!({"alg": "EdDSA", "kid": "ed"}), &claims());
    assert!(verified(&jwt, &token).await.is_ok());
    assert!(verified(&jwt, &token).await.is_ok());
    let later = NOW_MS + 91_000;
    assert_eq!(jwt.verify(Some(&token), later).await, Err(JwtError::Expired));

    jwt.replace(Issuer::new().set().to_string().as_bytes()).unwrap();
    assert_eq!(verified(&jwt, &token).await, Err(JwtError::Signature));
    assert_eq!(jwt.replace(b"{\"keys\": []}"), Err(KeysError::None));
    assert_eq!(jwt.replace(b"[]"), Err(KeysError::Form));
    let many = json!({"keys": vec![json!({"kty": "oct"}); 65]}).to_string();
    assert_eq!(jwt.replace(many.as_bytes()), Err(KeysError::TooMany));
}

#[tokio::test]
async fn an_unknown_key_is_asked_for_once_in_half_a_minute() {
    let issuer = Issuer::new();
    let audiences = vec!["takeback".to_owned()];
    let jwt = Arc::new(Jwt::with_url("https://idp".to_owned(), audiences, Required::Yes));
    let token = issuer.token(&json!({"alg": "EdDSA", "kid": "ed"}), &claims());
    let (fetching, set) = (Arc::clone(&jwt), issuer.set().to_string());
    let fetched = crate::tasks::Tasks::new().spawn_background("fetch", async move {
        fetching.wanted().await;
        fetching.replace(set.as_bytes()).unwrap();
    });

    assert!(verified(&jwt, &token).await.is_ok(), "the call waited for the keys");
    fetched.await.unwrap();

    let unknown = issuer.token(&json!({"alg": "EdDSA", "kid": "made up"}), &claims());
    assert_eq!(verified(&jwt, &unknown).await, Err(JwtError::UnknownKey));
    let Source::Url(fetching) = &jwt.source else { unreachable!() };
    assert!(!fetching.may_ask(NOW_MS + 29_999));
    assert!(fetching.may_ask(NOW_MS + 30_000));
    assert!(!fetching.may_ask(NOW_MS + 30_001));
}
