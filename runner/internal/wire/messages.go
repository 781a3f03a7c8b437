package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Version is the version of the protocol that this program speaks.
const Version = 1

// Sizes of the handshake's random values, in bytes.
const (
	NonceSize = 16
	KeySize   = 32
)

// HelloMessage opens a stream.
type HelloMessage struct {
	Versions []int   `json:"versions"`
	Nonce    string  `json:"nonce"`
	Claim    string  `json:"claim,omitempty"`
	BootID   string  `json:"boot_id,omitempty"`
	LeaseS   float64 `json:"lease_s"`
	Client   string  `json:"client,omitempty"`
	// MemoryBytes is the budget of the runner; 0 for its own default.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
}

// WelcomeMessage answers HELLO.
type WelcomeMessage struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	Nonce   string `json:"nonce"`
	Proof   string `json:"proof,omitempty"`
}

// ProofMessage is the driver's half of the proof.
type ProofMessage struct {
	Proof string `json:"proof"`
}

// GoodbyeMessage holds the reason for the end of a stream.
type GoodbyeMessage struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// RequestMessage begins a conversation.
type RequestMessage struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Window int64           `json:"window"`
	// InputWindow is how far the driver may be ahead with its input; 0 for the value of READY.
	InputWindow int64 `json:"input_window"`
}

// ResponseMessage ends a conversation: exactly one of the two fields is set.
type ResponseMessage struct {
	Result any    `json:"result,omitempty"`
	Error  *Error `json:"error,omitempty"`
}

// Error is an error of the protocol. Kind is listed in docs/protocol.md.
type Error struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Errno   string `json:"errno,omitempty"`
	Path    Bytes  `json:"path,omitempty"`
	Detail  any    `json:"detail,omitempty"`
}

func (e *Error) Error() string { return e.Kind + ": " + e.Message }

// DecodeHello decodes and checks HELLO. It returns the nonce and the claim (nil if there is none)
// as raw bytes.
func DecodeHello(payload []byte) (m HelloMessage, nonce, claim []byte, err error) {
	if err = json.Unmarshal(payload, &m); err != nil {
		return m, nil, nil, fmt.Errorf("%w: HELLO: %w", ErrProtocol, err)
	}
	if nonce, err = decodeHex("nonce", m.Nonce, NonceSize); err != nil {
		return m, nil, nil, err
	}
	if m.Claim != "" {
		if claim, err = decodeHex("claim", m.Claim, KeySize); err != nil {
			return m, nil, nil, err
		}
	}
	if math.IsNaN(m.LeaseS) || m.LeaseS <= 0 || m.LeaseS > 1e7 {
		return m, nil, nil, fmt.Errorf("%w: lease_s %v", ErrProtocol, m.LeaseS)
	}
	if m.MemoryBytes < 0 {
		return m, nil, nil, fmt.Errorf("%w: memory_bytes %d", ErrProtocol, m.MemoryBytes)
	}
	return m, nonce, claim, nil
}

// SupportsVersion reports whether the driver offers this program's version.
func (m *HelloMessage) SupportsVersion() bool { return slices.Contains(m.Versions, Version) }

// DecodeProof decodes PROOF.
func DecodeProof(payload []byte) ([]byte, error) {
	var m ProofMessage
	if err := json.Unmarshal(payload, &m); err != nil {
		return nil, fmt.Errorf("%w: PROOF: %w", ErrProtocol, err)
	}
	return decodeHex("proof", m.Proof, sha256.Size)
}

// DecodeRequest decodes a whole REQUEST.
func DecodeRequest(payload []byte) (RequestMessage, error) {
	var m RequestMessage
	if err := json.Unmarshal(payload, &m); err != nil {
		return m, fmt.Errorf("REQUEST: %w", err)
	}
	return m, nil
}

// Prove computes one side's proof; side is "runner" or "driver".
func Prove(key []byte, side string, driverNonce, runnerNonce []byte, bootID string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(side))
	mac.Write(driverNonce)
	mac.Write(runnerNonce)
	mac.Write([]byte(bootID))
	return mac.Sum(nil)
}

func decodeHex(name, value string, size int) ([]byte, error) {
	if len(value) != 2*size {
		return nil, fmt.Errorf("%w: %s has %d characters", ErrProtocol, name, len(value))
	}
	raw, err := hex.DecodeString(value)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrProtocol, name, err)
	}
	return raw, nil
}
