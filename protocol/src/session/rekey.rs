//! Both directions of a session, and fresh secrets for them while it lasts.
//!
//! ```text
//!   initiator                                             responder
//!     ── rekey-init   {e, ek} ── old keys ───────────────>   makes the new keys
//!     <─ rekey-answer {e, ct} ── old keys ────────────────   sends under its new key from here on
//!   makes the new keys, receives under the new one
//!     ── rekey-done   {} ─────── old keys ───────────────>   receives under the new one
//!   sends under its new key from here on
//! ```
//!
//! HKDF-SHA256 with salt = rekey secret, input = X25519 result ‖ ML-KEM secret, info = `octomesh-rekey-v1` ‖ SHA-256(kind and body of
//! init ‖ kind and body of answer) gives 96 bytes: the initiator's key, the responder's key, the next rekey secret. Counters begin at
//! 0 with a new key, and old keys are erased. Data flows on meanwhile. What it heals is the compromise of somebody who only listened:
//! an active attacker with the old keys can answer in the other side's place.
use std::fmt;

use sha2::{Digest as _, Sha256};

use super::{
    handshake::{InitiatorRandom, ResponderRandom, Split},
    kem::{self, CIPHERTEXT_BYTES, Decapsulator, ENCAPSULATION_KEY_BYTES, Encapsulator},
    params::DH_BYTES,
    record::{
        CloseReason, Opener, REKEY_ANSWER, REKEY_DONE, REKEY_INIT, Record, RecordError, RecordLimits, Sealer,
    },
    secret::{RekeySecret, SessionKey},
    symmetric::{self, Key},
};

const INFO: &[u8] = b"octomesh-rekey-v1";

#[cfg_attr(test, derive(Clone))]
enum State {
    Idle,
    /// Initiator: the init is said, the answer is awaited.
    Offered {
        ephemeral: Key,
        decapsulator: Decapsulator,
        init: Vec<u8>,
    },
    /// Responder: an init has come and waits for [`Session::answer`].
    Asked {
        init: Vec<u8>,
    },
    /// Responder: the answer is said; from the done on this is the key of what comes.
    Answered {
        receive: SessionKey,
    },
}

/// What a record of the other side says.
#[derive(Debug, PartialEq, Eq)]
pub enum Opened<'a> {
    /// Bytes of the stream.
    Data(&'a [u8]),
    /// The other side has ended its direction.
    Close(CloseReason),
    /// The other side wants new keys: [`Session::answer`] is to be called.
    Asked,
    /// The new keys are made; this record is to be sent before anything else.
    Send(Vec<u8>),
    /// The rekey is done on this side.
    Done,
}

/// Keys of both directions of a session after its handshake.
#[cfg_attr(test, derive(Clone))]
pub struct Session {
    sealer: Sealer,
    opener: Opener,
    initiator: bool,
    limits: RecordLimits,
    secret: RekeySecret,
    state: State,
    /// The other side ended, so that nothing can be answered any more.
    over: bool,
}

impl Session {
    /// For the result of a handshake. At `limits`, in either direction, the initiator's side is [due](Self::is_due) to rekey; twice that
    /// is a hard stop.
    #[must_use]
    pub fn new(split: &Split, initiator: bool, limits: RecordLimits) -> Self {
        Self {
            sealer: Sealer::new(&split.send, limits.doubled()),
            opener: Opener::new(&split.receive, limits.doubled()),
            initiator,
            limits,
            secret: split.rekey_secret.clone(),
            state: State::Idle,
            over: false,
        }
    }

    /// Whether a body of `bytes` may be sealed now; if not, a rekey has to end first.
    #[must_use]
    pub const fn has_room(&self, bytes: usize) -> bool {
        self.sealer.has_room(bytes)
    }

    /// See [`Sealer::seal`].
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn seal(&mut self, record: &mut Vec<u8>) -> Result<(), RecordError> {
        self.sealer.seal(record)
    }

    /// See [`Sealer::close`].
    ///
    /// # Errors
    /// [`RecordError::Closed`] the second time.
    pub fn close(&mut self, reason: CloseReason) -> Result<Vec<u8>, RecordError> {
        self.sealer.close(reason)
    }

    /// See [`Sealer::close_with`].
    ///
    /// # Errors
    /// [`RecordError::Closed`] the second time.
    pub fn close_with(&mut self, reason: CloseReason, detail: &str) -> Result<Vec<u8>, RecordError> {
        self.sealer.close_with(reason, detail)
    }

    /// See [`Opener::close_detail`].
    #[must_use]
    pub fn close_detail(&self) -> &str {
        self.opener.close_detail()
    }

    /// Whether this side should start a rekey because of what was sent and received. That it is old is known to its owner.
    #[must_use]
    pub const fn is_due(&self) -> bool {
        self.may_start() && (self.sealer.reached(self.limits) || self.opener.reached(self.limits))
    }

    /// Whether this side can start one: it dialled, none is under way, and neither side has ended.
    #[must_use]
    pub const fn may_start(&self) -> bool {
        self.initiator && matches!(self.state, State::Idle) && !self.over && !self.sealer.ended()
    }

    /// Whether the other side has to say something before data can be sent for ever.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        !self.over && !matches!(self.state, State::Idle)
    }

    /// Whether a rekey can still come, so that it is worth to wait for room.
    #[must_use]
    pub const fn can_rekey(&self) -> bool {
        !self.over && !self.sealer.ended()
    }

    /// Starts a rekey; the record is to be sent.
    ///
    /// # Errors
    /// [`RecordError::Rekey`] unless [`Self::may_start`].
    pub fn start(&mut self, random: &InitiatorRandom) -> Result<Vec<u8>, RecordError> {
        if !self.may_start() {
            return Err(RecordError::Rekey);
        }
        let decapsulator = Decapsulator::from_seed(&random.kem_seed);
        let mut init = vec![REKEY_INIT];
        init.extend_from_slice(&kem::x25519_public(&random.ephemeral));
        init.extend_from_slice(&decapsulator.public());
        let record = self.sealer.control(&init)?;
        self.state = State::Offered { ephemeral: Key::new(random.ephemeral), decapsulator, init };
        Ok(record)
    }

    /// Answers [`Opened::Asked`]; the record is to be sent before anything else.
    ///
    /// # Errors
    /// [`RecordError::Rekey`] if nothing was asked or the other side's keys are no keys; [`RecordError::Closed`].
    pub fn answer(&mut self, random: &ResponderRandom) -> Result<Vec<u8>, RecordError> {
        let State::Asked { init } = std::mem::replace(&mut self.state, State::Idle) else {
            return Err(RecordError::Rekey);
        };
        let (remote, key) = parts::<ENCAPSULATION_KEY_BYTES>(&init)?;
        let (ciphertext, shared) =
            Encapsulator::new(key).map_err(|_| RecordError::Rekey)?.seal(&random.encapsulation);
        let dh = kem::x25519(&random.ephemeral, remote).map_err(|_| RecordError::Rekey)?;
        let mut answer = vec![REKEY_ANSWER];
        answer.extend_from_slice(&kem::x25519_public(&random.ephemeral));
        answer.extend_from_slice(&ciphertext);
        let record = self.sealer.control(&answer)?;
        let [to_responder, to_initiator, secret] = keys(&self.secret, &dh, &shared, &init, &answer);
        self.secret = RekeySecret::from_bytes(*secret);
        self.sealer.switch(&SessionKey::from_bytes(*to_initiator));
        self.state = State::Answered { receive: SessionKey::from_bytes(*to_responder) };
        Ok(record)
    }

    /// Reads a record as [`Opener::open`] does.
    ///
    /// # Errors
    /// [`RecordError`]; everything is over then.
    pub fn open<'a>(&mut self, sealed: &'a mut [u8]) -> Result<Opened<'a>, RecordError> {
        let message = match self.opener.open(sealed)? {
            Record::Data(body) => return Ok(Opened::Data(body)),
            Record::Close(reason) => {
                self.over = true;
                return Ok(Opened::Close(reason));
            }
            Record::Rekey(message) => message,
        };
        let turned = self.turn(message);
        if turned.is_err() {
            self.opener.end();
        }
        turned
    }

    /// One of the three messages; `message` is kind and body.
    fn turn(&mut self, message: &[u8]) -> Result<Opened<'static>, RecordError> {
        match (std::mem::replace(&mut self.state, State::Idle), message.first().copied()) {
            // Who has closed can't answer; the other side hears of the close and waits no longer.
            (State::Idle, Some(REKEY_INIT)) if !self.initiator => {
                parts::<ENCAPSULATION_KEY_BYTES>(message)?;
                if self.sealer.ended() {
                    self.over = true;
                    return Ok(Opened::Done);
                }
                self.state = State::Asked { init: message.to_vec() };
                Ok(Opened::Asked)
            }
            (State::Offered { ephemeral, decapsulator, init }, Some(REKEY_ANSWER)) => {
                let (remote, ciphertext) = parts::<CIPHERTEXT_BYTES>(message)?;
                let dh = kem::x25519(&ephemeral, remote).map_err(|_| RecordError::Rekey)?;
                let shared = decapsulator.open(ciphertext);
                let [to_responder, to_initiator, secret] = keys(&self.secret, &dh, &shared, &init, message);
                self.secret = RekeySecret::from_bytes(*secret);
                self.opener.switch(&SessionKey::from_bytes(*to_initiator));
                if self.sealer.ended() {
                    self.over = true;
                    return Ok(Opened::Done);
                }
                let done = self.sealer.control(&[REKEY_DONE])?;
                self.sealer.switch(&SessionKey::from_bytes(*to_responder));
                Ok(Opened::Send(done))
            }
            (State::Answered { receive }, Some(REKEY_DONE)) if message.len() == 1 => {
                self.opener.switch(&receive);
                Ok(Opened::Done)
            }
            _ => Err(RecordError::Rekey),
        }
    }
}

/// Kind, X25519 key, and a part of `N` bytes.
fn parts<const N: usize>(message: &[u8]) -> Result<(&[u8; DH_BYTES], &[u8; N]), RecordError> {
    let (_, body) = message.split_first().ok_or(RecordError::Rekey)?;
    let (public, rest) = body.split_first_chunk().ok_or(RecordError::Rekey)?;
    Ok((public, rest.try_into().map_err(|_| RecordError::Rekey)?))
}

/// Initiator to responder, responder to initiator, next rekey secret.
fn keys(secret: &RekeySecret, dh: &Key, shared: &Key, init: &[u8], answer: &[u8]) -> [Key; 3] {
    let digest = Sha256::new().chain_update(init).chain_update(answer).finalize();
    symmetric::hkdf_sha256(secret.expose(), &[&dh[..], &shared[..]], &[INFO, &digest])
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("sealer", &self.sealer)
            .field("opener", &self.opener)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
