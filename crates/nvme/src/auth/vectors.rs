//! Values computed apart from this code (Python's hmac, hashlib, zlib and big integers), so that a
//! mistake made twice in the same way is still found.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::{Group, Hash, Names};

/// Bytes from hexadecimal.
pub(super) fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// The names the answers below are for.
pub(super) fn names() -> Names {
    Names { host: HOST.to_string(), subsystem: SUBSYSTEM.to_string() }
}

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:5f3a2c64-1fd1-4b2e-9d7b-0c6a5f1e2d3c";
const SUBSYSTEM: &str = "nqn.2026-01.io.holdfast:vol-1";

/// Text of a secret, its key.
pub(super) const SECRETS: [(&str, &str); 4] = [
    (
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    ),
    (
        "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    ),
    (
        "\
        DHHC-1:02:AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dzj6vH4/wYNFBsiKTA3Pk\
        VMRdxyRQ==:\
        ",
        "\
        030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dce3eaf1f8\
        ff060d141b222930373e454c\
        ",
    ),
    (
        "\
        DHHC-1:03://z59vPw7ern5OHe29jV0s/MycbDwL26t7SxrquopaKfnJmWk5CNioeEgX57eH\
        Vyb2xpZmNgXVpXVFFOS0hFQuEJPME=:\
        ",
        "\
        fffcf9f6f3f0edeae7e4e1dedbd8d5d2cfccc9c6c3c0bdbab7b4b1aeaba8a5a29f9c9996\
        93908d8a8784817e7b7875726f6c696663605d5a5754514e4b484542\
        ",
    ),
];

/// Text of a secret, the owner's name, the key bound to it.
pub(super) const BOUND_KEYS: [(&str, &str, &str); 4] = [
    (
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        HOST,
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    ),
    (
        "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        HOST,
        "f6116b5c0d6c2b9a123737030b4e60dc48558ec9a4149461eb0d7cde231e2112",
    ),
    (
        "\
        DHHC-1:02:AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dzj6vH4/wYNFBsiKTA3Pk\
        VMRdxyRQ==:\
        ",
        SUBSYSTEM,
        "\
        f0b910de9fb37922f2cd0d3f8c7ccbe5023235926eb0b4ed3ee0f8dd39605109d4218d7a\
        0799e4fc886b53fc9488b866\
        ",
    ),
    (
        "\
        DHHC-1:03://z59vPw7ern5OHe29jV0s/MycbDwL26t7SxrquopaKfnJmWk5CNioeEgX57eH\
        Vyb2xpZmNgXVpXVFFOS0hFQuEJPME=:\
        ",
        HOST,
        "\
        e0320d2b59ee09f2fe5083f7c5fc9a57756a22b0baef825daa3139261642a7d10675ccff\
        5daebb1903cae1d2e36b156ce4471565149edb05461dc570399763a2\
        ",
    ),
];

pub(super) const EXPONENT_A: [u8; 50] = [
    1, 6, 11, 16, 21, 26, 31, 36, 41, 46, 51, 56, 61, 66, 71, 76, 81, 86, 91, 96, 101, 106, 111,
    116, 121, 126, 131, 136, 141, 146, 151, 156, 161, 166, 171, 176, 181, 186, 191, 196, 201, 206,
    211, 216, 221, 226, 231, 236, 241, 246,
];
pub(super) const EXPONENT_B: [u8; 50] = [
    7, 18, 29, 40, 51, 62, 73, 84, 95, 106, 117, 128, 139, 150, 161, 172, 183, 194, 205, 216, 227,
    238, 249, 4, 15, 26, 37, 48, 59, 70, 81, 92, 103, 114, 125, 136, 147, 158, 169, 180, 191, 202,
    213, 224, 235, 246, 1, 12, 23, 34,
];

/// Group, SHA-256 of its prime, of A's public value, of the secret A and B share.
pub(super) const GROUPS: [(Group, &str, &str, &str); 5] = [
    (
        Group::Ffdhe2048,
        "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
        "fc2c758ad79589cf8004fba6c35641ce2c6f7f99afac21099466365121eb6052",
        "96bb3ceaed5d4e16be5a87e77ef25cf54b7aa9104a05e344b3f6a3f9331c7b7a",
    ),
    (
        Group::Ffdhe3072,
        "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
        "31f889da6645b5a614c93663debb84b2325701ebd3a1ab8dcc3f11c4d996edb2",
        "8510fe00f492563d40ab7ed1e4962a5533ba865c67265e31a8d0d353f9f6d75f",
    ),
    (
        Group::Ffdhe4096,
        "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
        "b2f78bc350f43456229ce0f192150c963f502c1e1bf96eaaa8d05dac53d9e27d",
        "ac91fa317936964d2592c0ef132bc07eb2755bec22ea6d41e912d551aabca472",
    ),
    (
        Group::Ffdhe6144,
        "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
        "178769402dd73bf2bc35136603bb5fda9c9f8b9a1024e0ed2d797af70bfcd06f",
        "9364600931e4be148250667c8e2712a4dcbeba8afbacb21ce5108d2b821e8377",
    ),
    (
        Group::Ffdhe8192,
        "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
        "a68d77fc4c3d95d36d04bc2a320cd7bd022ef9b93d66afacdd2e0a94b6a7eef8",
        "34649d2416ca0f93a9bc48da68c9abde6346b15130d1e4146f59ae8520a86378",
    ),
];

/// 64 bytes; a hash that yields fewer takes the first of them.
pub(super) const CHALLENGE: &str = "\
    05121f2c394653606d7a8794a1aebbc8d5e2effc091623303d4a5764717e8b98a5b2bfcc\
    d9e6f3000d1a2734414e5b6875828f9ca9b6c3d0ddeaf704111e2b38\
    ";

/// One challenge answered by both sides.
pub(super) struct Answer {
    pub(super) hash: Hash,
    pub(super) secret: &'static str,
    pub(super) shared: Option<&'static str>,
    pub(super) host: &'static str,
    pub(super) controller: &'static str,
}

pub(super) const ANSWERS: [Answer; 5] = [
    Answer {
        hash: Hash::Sha256,
        secret: "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        shared: None,
        host: "57f7e01b27a20c2d9231929d959d8f5356c100ceae60190f0e0608ba025a31a2",
        controller: "82430212aac4b40e1dd29fbb84c79fc665dd8453cb2d84a99d5b0e779a5d3fce",
    },
    Answer {
        hash: Hash::Sha384,
        secret: "\
            DHHC-1:02:AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dzj6vH4/wYNFBsiKTA3Pk\
            VMRdxyRQ==:\
            ",
        shared: None,
        host: "\
            86e4a2020189175c0413e77520dab3982a0aceb7bf39a57be54730fb706ac5892960d9a9\
            8420f785d3b3b60ae22574ed\
            ",
        controller: "\
            1d4003cd1f5d5ee29823eee53c373df7384d51045d2fec320fbc85991a09409fcd326bf7\
            248f5ea3ab175393d0218ccb\
            ",
    },
    Answer {
        hash: Hash::Sha512,
        secret: "\
            DHHC-1:03://z59vPw7ern5OHe29jV0s/MycbDwL26t7SxrquopaKfnJmWk5CNioeEgX57eH\
            Vyb2xpZmNgXVpXVFFOS0hFQuEJPME=:\
            ",
        shared: None,
        host: "\
            7a3b70d3b81d33ec98ab6c35ac24b8e0ecd71b228f7e6f1a4262838e6c311df13691a915\
            cc22d66766b758f914b7396c1906839456dc434201740fc0b64b87e2\
            ",
        controller: "\
            d760d8d6051e4fc597efe2c06d25e7b045f0321d9c5e30f1d591c3110d4caeb264781237\
            04e6bc0ae39395baa1da16594d112978d721497dea9a3f8bd9d23fa5\
            ",
    },
    Answer {
        hash: Hash::Sha256,
        secret: "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        shared: Some(SHARED),
        host: "a9a017af64220eda47a8f547b18771d52c20a89173c09cf1d68195b51736cdd3",
        controller: "7c71f5885dcb992d87f4ff9f76e6711b4101fa9f60eb9e3d77bacee89d569240",
    },
    Answer {
        hash: Hash::Sha512,
        secret: "\
            DHHC-1:03://z59vPw7ern5OHe29jV0s/MycbDwL26t7SxrquopaKfnJmWk5CNioeEgX57eH\
            Vyb2xpZmNgXVpXVFFOS0hFQuEJPME=:\
            ",
        shared: Some(SHARED),
        host: "\
            4ed0d959d76d568f0a5b11803c164e7dd767b3d4953f37d3d11a9110b9aab192b71935e0\
            9b09fa67e65cb94757aedcd168a012de4ecb4dd1736a4c4634712592\
            ",
        controller: "\
            81741b2eb99d57b88f3cab391878553da0cd9ce059f5e5a3280261125e813218827e6f85\
            4704e0615ec151176849facccce278bbf8f24536c081e1046e02dd39\
            ",
    },
];

const SHARED: &str = "\
    0b2845627f9cb9d6f3102d4a6784a1bedbf815324f6c89a6c3e0fd1a3754718eabc8e502\
    1f3c597693b0cdea0724415e7b98b5d2ef0c294663809dbad7f4112e4b6885a2bfdcf916\
    33506d8aa7c4e1fe1b3855728facc9e603203d5a7794b1ceeb0825425f7c99b6d3f00d2a\
    4764819ebbd8f5122f4c6986a3c0ddfa1734516e8ba8c5e2ff1c39567390adcae704213e\
    5b7895b2cfec092643607d9ab7d4f10e2b4865829fbcd9f613304d6a87a4c1defb183552\
    6f8ca9c6e3001d3a577491aecbe805223f5c7996b3d0ed0a2744617e9bb8d5f20f2c4966\
    83a0bddaf714314e6b88a5c2dffc193653708daac7e4011e3b587592afcce90623405d7a\
    97b4d1ee\
    ";
