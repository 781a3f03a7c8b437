package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestFramesSurviveAnyCut(t *testing.T) {
	var stream []byte
	big := bytes.Repeat([]byte("x"), MaxData)
	stream = AppendFrame(stream, Keepalive, 0, 0, nil)
	stream = AppendFrame(stream, Request, More, 7, []byte("{}"))
	stream = AppendPositioned(stream, Data, 5, 1<<40, 1<<33, big)
	stream = AppendPositioned(stream, End, 5, 9, 3, nil)
	stream = AppendResumed(stream, 4, true, 77)
	want := []Header{
		{Type: Keepalive},
		{Type: Request, Flags: More, ID: 7, Length: 2},
		{Type: Data, Channel: 5, ID: 1 << 40, Length: MaxPayload},
		{Type: End, Channel: 5, ID: 9, Length: 8},
		{Type: Resumed, ID: 4, Length: 9},
	}
	readers := map[string]io.Reader{
		"whole": bytes.NewReader(stream), "bytes": iotest.OneByteReader(bytes.NewReader(stream)),
		"half":       iotest.HalfReader(bytes.NewReader(stream)),
		"with error": iotest.DataErrReader(bytes.NewReader(stream)),
	}
	for name, source := range readers {
		t.Run(name, func(t *testing.T) {
			r := NewReader(source)
			for i, w := range want {
				h, payload, err := r.Next()
				if err != nil || h != w {
					t.Fatalf("frame %d: %+v, %v", i, h, err)
				}
				if h.Type == Data {
					if p, err := Position(payload); err != nil || p != 1<<33 ||
						!bytes.Equal(payload[PositionSize:], big) {
						t.Fatalf("position %d, %v", p, err)
					}
				}
			}
			if _, _, err := r.Next(); err != io.EOF {
				t.Fatalf("at the end: %v", err)
			}
		})
	}
}

func TestForbiddenHeaders(t *testing.T) {
	cases := map[string]Header{
		"unknown type":         {Type: 99},
		"type zero":            {},
		"too long":             {Type: Data, ID: 1, Length: MaxPayload + 1},
		"endless":              {Type: Request, ID: 1, Length: 1<<32 - 1},
		"short position":       {Type: Credit, ID: 1, Length: 7},
		"long position":        {Type: End, ID: 1, Length: 9},
		"data of no position":  {Type: Data, ID: 1, Length: 7},
		"ack with a payload":   {Type: Ack, ID: 1, Length: 1},
		"more on data":         {Type: Data, ID: 1, Length: 8, Flags: More},
		"unknown flag":         {Type: Request, ID: 1, Flags: 2},
		"channel on request":   {Type: Request, ID: 1, Channel: 1},
		"request with id 0":    {Type: Request},
		"keepalive with an id": {Type: Keepalive, ID: 1},
	}
	for name, h := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := DecodeHeader(AppendHeader(nil, h)); !errors.Is(err, ErrProtocol) {
				t.Fatalf("%v", err)
			}
		})
	}
}

func TestTruncatedFrame(t *testing.T) {
	frame := AppendPositioned(nil, Data, 0, 1, 0, []byte("abc"))
	for cut := 1; cut < len(frame); cut++ {
		if _, _, err := NewReader(bytes.NewReader(frame[:cut])).Next(); err != io.ErrUnexpectedEOF {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

func TestDecodeHello(t *testing.T) {
	nonce, claim := strings.Repeat("0a", NonceSize), strings.Repeat("0b", KeySize)
	good := `{"versions":[1],"nonce":"` + nonce + `","claim":"` + claim + `","lease_s":60,"client":"x"}`
	m, n, c, err := DecodeHello([]byte(good))
	if err != nil || !m.SupportsVersion() || len(n) != NonceSize || len(c) != KeySize {
		t.Fatalf("%+v %v", m, err)
	}
	bad := map[string]string{
		"not json":    `{`,
		"short nonce": `{"versions":[1],"nonce":"00","lease_s":60}`,
		"no nonce":    `{"versions":[1],"lease_s":60}`,
		"bad hex":     `{"versions":[1],"nonce":"` + strings.Repeat("zz", NonceSize) + `","lease_s":60}`,
		"short claim": `{"versions":[1],"nonce":"` + nonce + `","claim":"00","lease_s":60}`,
		"no lease":    `{"versions":[1],"nonce":"` + nonce + `"}`,
		"negative":    `{"versions":[1],"nonce":"` + nonce + `","lease_s":-1}`,
		"a list":      `[]`,
	}
	for name, text := range bad {
		t.Run(name, func(t *testing.T) {
			if _, _, _, err := DecodeHello([]byte(text)); !errors.Is(err, ErrProtocol) {
				t.Fatalf("%v", err)
			}
		})
	}
}

func TestProve(t *testing.T) {
	// Computed with Python: hmac.new(b"k"*32, b"runner"+b"d"*16+b"r"*16+b"boot", "sha256").hexdigest()
	got := hex.EncodeToString(Prove(bytes.Repeat([]byte("k"), KeySize), "runner", bytes.Repeat([]byte("d"), 16),
		bytes.Repeat([]byte("r"), 16), "boot"))
	if got != "945ffd0cd3519b65ee77309f8c1a6add4169a2924bd1be55896d4b9277e1e9d7" {
		t.Fatal(got)
	}
}

func FuzzDecodeFrames(f *testing.F) {
	f.Add(AppendFrame(nil, Keepalive, 0, 0, nil))
	f.Add(AppendPositioned(nil, Data, 1, 2, 3, []byte("abc")))
	f.Add(AppendFrame(nil, Request, More, 1, []byte(`{"method":"x"}`)))
	f.Fuzz(func(t *testing.T, input []byte) {
		r := NewReader(bytes.NewReader(input))
		var again []byte
		for {
			h, payload, err := r.Next()
			if err != nil {
				break
			}
			again = append(AppendHeader(again, h), payload...)
			if int(h.Length) != len(payload) {
				t.Fatal("length")
			}
		}
		if !bytes.HasPrefix(input, again) {
			t.Fatal("what was read is not what was written")
		}
		if len(r.buf) > 2*(HeaderSize+MaxPayload) {
			t.Fatal("memory")
		}
	})
}

func FuzzDecodeMessages(f *testing.F) {
	f.Add([]byte(`{"versions":[1],"nonce":"00","lease_s":60}`))
	f.Add([]byte(`{"method":"exec.run","params":{},"window":1}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		if m, nonce, claim, err := DecodeHello(input); err == nil &&
			(len(nonce) != NonceSize || claim != nil && len(claim) != KeySize || !(m.LeaseS > 0)) {
			t.Fatal("accepted")
		}
		if proof, err := DecodeProof(input); err == nil && len(proof) != 32 {
			t.Fatal("accepted")
		}
		_, _ = DecodeRequest(input)
	})
}
