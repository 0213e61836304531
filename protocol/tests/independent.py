#!/usr/bin/env python3
"""The vectors of docs/protocol.md, made by a second implementation: written from that document alone, in another language, on other libraries.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install cryptography kyber-py dilithium-py
    /tmp/venv/bin/python protocol/tests/independent.py

Not part of the tests of CI, since those need no Python packages. It says how many vectors agree and ends with an error at the first that does not.
"""
import base64
import hashlib
import hmac
import pathlib
import re
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from dilithium_py.ml_dsa import ML_DSA_65
from kyber_py.ml_kem import ML_KEM_768

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs/protocol.md"
BLOCK = re.search(r"```vectors\n(.*?)```", DOCUMENT.read_text(), re.S)[1]
WRITTEN = dict(line.split(" = ", 1) for line in BLOCK.strip().split("\n"))
agreed = set()


def vector(name, value):
    value = value if isinstance(value, str) else value.hex()
    assert WRITTEN[name] == value, f"{name}: {value}, but the document says {WRITTEN[name]}"
    agreed.add(name)


def long_vector(name, value):
    vector(name, f"{len(value)} bytes, SHA-256 {sha256(value).hex()}")


# Primitives


def sha256(data):
    return hashlib.sha256(data).digest()


def hmac256(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def x25519_public(secret):
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def x25519(secret, public):
    return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))


def seal(key, counter, associated, plain):
    return ChaCha20Poly1305(key).encrypt(bytes(4) + struct.pack("<Q", counter), plain, associated)


def kem_key(seed):
    return ML_KEM_768._keygen_internal(seed[:32], seed[32:])


# Section 3


class Handshake:
    def __init__(self, prologue, psk):
        self.h = self.ck = sha256(b"Noise_XXhfs+psk0_25519+MLKEM768_ChaChaPoly_SHA256")
        self.mix_hash(prologue)
        self.ck, mixed, self.k = self.hkdf(psk)
        self.mix_hash(mixed)
        self.n = 0

    def hkdf(self, data):
        t = hmac256(self.ck, data)
        o1 = hmac256(t, b"\1")
        o2 = hmac256(t, o1 + b"\2")
        return o1, o2, hmac256(t, o2 + b"\3")

    def mix_hash(self, data):
        self.h = sha256(self.h + data)

    def mix_key(self, data):
        self.ck, self.k, _ = self.hkdf(data)
        self.n = 0

    def ephemeral(self, public):
        self.mix_hash(public)
        self.mix_key(public)
        return public

    def seal(self, plain):
        sealed = seal(self.k, self.n, self.h, plain)
        self.n += 1
        self.mix_hash(sealed)
        return sealed


def record(key, counter, plain):
    sealed = seal(key, counter, b"", plain)
    return struct.pack(">H", len(sealed)) + sealed


def handshake():
    state = Handshake(b"octomesh/pq/1" + b"\xaa" * 32, b"\7" * 32)
    e_i, e_r, s_i, s_r = b"\3" * 32, b"\4" * 32, b"\1" * 32, b"\2" * 32
    encapsulation_key, decapsulation_key = kem_key(b"\3" * 64)
    first = state.ephemeral(x25519_public(e_i)) + state.seal(encapsulation_key) + state.seal(b"")

    second = state.ephemeral(x25519_public(e_r))
    state.mix_key(x25519(e_r, x25519_public(e_i)))
    shared, ciphertext = ML_KEM_768._encaps_internal(encapsulation_key, b"\4" * 32)
    assert ML_KEM_768.decaps(decapsulation_key, ciphertext) == shared
    second += state.seal(ciphertext)
    state.mix_key(shared)
    second += state.seal(x25519_public(s_r))
    state.mix_key(x25519(s_r, x25519_public(e_i)))
    second += state.seal(b"identity of the responder")

    third = state.seal(x25519_public(s_i))
    state.mix_key(x25519(s_i, x25519_public(e_r)))
    third += state.seal(b"identity of the initiator")
    to_responder, to_initiator, rekey_secret = state.hkdf(b"")

    vector("handshake.e_initiator", x25519_public(e_i))
    vector("handshake.e_responder", x25519_public(e_r))
    long_vector("handshake.message_1", first)
    long_vector("handshake.message_2", second)
    vector("handshake.message_3", third)
    vector("handshake.hash", state.h)
    vector("handshake.key_to_responder", to_responder)
    vector("handshake.key_to_initiator", to_initiator)
    vector("handshake.rekey_secret", rekey_secret)
    vector("record.data", record(to_responder, 0, b"\0hello"))
    vector("record.close", record(to_responder, 1, b"\4\0"))


# Section 7


def rekey():
    to_responder, to_initiator, secret = b"\1" * 32, b"\2" * 32, b"\3" * 32
    ephemeral = b"\7" * 32
    encapsulation_key, _ = kem_key(b"\7" * 64)
    shared, ciphertext = ML_KEM_768._encaps_internal(encapsulation_key, b"\7" * 32)
    init = b"\1" + x25519_public(ephemeral) + encapsulation_key
    answer = b"\2" + x25519_public(ephemeral) + ciphertext
    t = hmac256(secret, x25519(ephemeral, x25519_public(ephemeral)) + shared)
    info = b"octomesh-rekey-v1" + sha256(init + answer)
    o1 = hmac256(t, info + b"\1")
    o2 = hmac256(t, o1 + info + b"\2")
    long_vector("rekey.init", record(to_responder, 0, init))
    long_vector("rekey.answer", record(to_initiator, 0, answer))
    vector("rekey.done", record(to_responder, 1, b"\3"))
    vector("rekey.data_to_responder", record(o1, 0, b"\0hello"))
    vector("rekey.data_to_initiator", record(o2, 0, b"\0hello"))


# Section 2


def number(n):
    if n < 251:
        return bytes([n])
    for limit, mark, form in [(1 << 16, 251, "<H"), (1 << 32, 252, "<I"), (1 << 64, 253, "<Q")]:
        if n < limit:
            return bytes([mark]) + struct.pack(form, n)
    raise ValueError(n)


def with_length(data):
    return number(len(data)) + data


def text(value):
    return with_length(value.encode())


# Sections 4 and 5


class Pair:
    def __init__(self, fill):
        self.ed25519 = Ed25519PrivateKey.from_private_bytes(bytes([fill]) * 32)
        self.id = self.ed25519.public_key().public_bytes_raw()
        self.ml_dsa, self.secret = ML_DSA_65._keygen_internal(bytes([fill]) * 32)
        self.public = self.id + with_length(self.ml_dsa)

    def sign(self, label, message):
        message = label + message
        return self.ed25519.sign(message) + ML_DSA_65.sign(self.secret, message, ctx=b"", deterministic=True)


NOW, YEAR, DAY = 1_800_000_000, 31_536_000, 86_400
ADMIN, WORKER = 0, 1


def base58(data):
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    value, digits = int.from_bytes(data, "big"), ""
    while value:
        value, digit = divmod(value, 58)
        digits = alphabet[digit] + digits
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + digits


def trust():
    root, admin, worker, joiner = Pair(1), Pair(2), Pair(3), Pair(5)
    mesh = sha256(root.id + root.ml_dsa)
    h = b"\x11" * 32

    def certificate(issuer, signer, subject, name, role):
        content = number(1) + mesh + issuer + subject.public + text(name) + number(role) + b"\0\0"
        content += number(1) + number(NOW - DAY) + number(NOW + YEAR)
        return with_length(content) + with_length(signer.sign(b"octomesh-certificate-v1", content))

    def payload(who, chain, side):
        unsigned = number(1) + number(NOW) + chain
        return unsigned + who.sign(b"octomesh-identity-v1", side + h + sha256(unsigned))

    of_admin = certificate(number(0), root, admin, "attic", ADMIN)
    of_worker = certificate(number(1) + admin.id, admin, worker, "tower", WORKER)
    one = root.public + number(1) + of_admin
    two = root.public + number(2) + of_worker + of_admin
    vector("trust.root_ed25519", root.id)
    long_vector("trust.root_ml_dsa", root.ml_dsa)
    vector("trust.mesh_id", mesh)
    vector("trust.admin_id", base58(bytes.fromhex("002408011220") + admin.id))
    long_vector("trust.chain_of_one", one)
    long_vector("trust.chain_of_two", two)
    long_vector("trust.payload_of_initiator", payload(worker, two, b"I"))
    long_vector("trust.payload_of_responder", payload(admin, one, b"R"))

    unsigned = number(1) + number(NOW) + joiner.public + text("pi")
    long_vector("join.request", unsigned + joiner.sign(b"octomesh-join-v1", b"I" + h + sha256(unsigned)))

    # Section 9
    revocation = number(1) + mesh + worker.id + number(NOW) + text("stolen") + number(0)
    signature = root.sign(b"octomesh-revocation-v1", revocation)
    vector("revocation.id", sha256(b"octomesh-revocation-id-v1" + revocation))
    long_vector("revocation.statement", with_length(revocation) + number(0) + root.public + with_length(signature))
    rotation = number(1) + mesh + number(1) + number(NOW) + number(1) + admin.id + b"\6" * 32
    signature = admin.sign(b"octomesh-rotation-v1", rotation)
    vector("rotation.id", sha256(b"octomesh-rotation-id-v1" + rotation))
    long_vector("rotation.statement", with_length(rotation) + number(1) + one + with_length(signature))

    secret = b"\x09" * 32
    content = number(1) + mesh + admin.id + number(2) + text("192.168.1.20:7400") + text("[fd00::1]:7400")
    content += secret + number(WORKER) + number(NOW + 3600)
    encoded = base64.b32encode(content + sha256(content)[:4]).decode().rstrip("=").lower()
    vector("ticket.id", sha256(b"octomesh-ticket-id-v1" + secret)[:8].hex())
    vector("ticket.text", "octo1" + encoded)


# Section 8


def frames():
    key = text("run-0101010101010101") + text("s001")
    load = number(4) + number(0) * 4 + b"\0\1" + number(0)
    outcome = number(0) + with_length(b"1") + number(5) + number(1) + sha256(b"1")
    reserve = key + text("echo") + b"\5" * 32 + b"".join(map(number, [0, 10, 0, 0, 2, 60_000, 1, 300]))
    bodies = {
        "probe": text("echo") + with_length(b"{}"),
        "have": number(300),
        "missing": text("no"),
        "reserve": reserve,
        "granted": number(7) + load,
        "refused": number(4) + text("x") + load,
        "start": number(7) + number(1) + with_length(b"{}"),
        "event": number(1) + number(2) + text("t"),
        "outcome": outcome,
        "renew": number(1) + number(7),
        "cancel": key + number(1),
        "status": key,
        "status_reply": number(3) + outcome,
        "start_if_free": reserve + with_length(b"{}"),
        "started": number(7) + load,
    }
    for kind, (name, body) in enumerate(bodies.items(), start=1):
        vector(f"frame.{name}", struct.pack(">I", len(body) + 2) + bytes([1, kind]) + body)


for part in (handshake, rekey, trust, frames):
    part()
missing = WRITTEN.keys() - agreed
assert not missing, f"not made here: {', '.join(sorted(missing))}"
print(f"{len(agreed)} of {len(WRITTEN)} vectors agree")
