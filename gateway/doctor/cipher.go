package doctor

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"

	"culvert/gateway/control"
)

// vector is RFC 8439, Section 2.8.2: the example of AEAD_CHACHA20_POLY1305, by which
// WireGuard encrypts. The key is 80 81 82 … 9f, sealed are the ciphertext and then the tag.
var vector = struct{ nonce, data, plain, sealed []byte }{
	nonce: unhex("070000004041424344454647"),
	data:  unhex("50515253c0c1c2c3c4c5c6c7"),
	plain: []byte("Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it."),
	sealed: unhex("d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6" +
		"3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36" +
		"92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc" +
		"3ff4def08e4b7a9de576d26586cec64b6116" + "1ae10b594f09e26a7e902ecbd0600691"),
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

// seals is how many packets are sealed to measure the cipher: half a millisecond of work.
const (
	seals      = 400
	sealedSize = 1400
)

// cipher seals and opens the vector, and measures how fast that goes.
func cipher() control.Condition {
	c := control.Condition{Name: "cipher", State: bad, Costs: "no packet can be trusted to pass",
		Remedy: "do not run here: the CPU or its emulation computes wrongly"}
	key := make([]byte, chacha20poly1305.KeySize)
	for i := range key {
		key[i] = byte(0x80 + i)
	}
	aead, err := chacha20poly1305.New(key)
	if err != nil {
		c.Found = err.Error()
		return c
	}
	sealed := aead.Seal(nil, vector.nonce, vector.plain, vector.data)
	plain, err := aead.Open(nil, vector.nonce, vector.sealed, vector.data)
	if !bytes.Equal(sealed, vector.sealed) || err != nil || !bytes.Equal(plain, vector.plain) {
		c.Found = "ChaCha20-Poly1305 is not what RFC 8439 says"
		return c
	}
	packet := make([]byte, sealedSize, sealedSize+aead.Overhead())
	began := time.Now()
	for range seals {
		aead.Seal(packet[:0], vector.nonce, packet, nil)
	}
	each := time.Since(began) / seals
	return control.Condition{Name: "cipher", State: good,
		Found: fmt.Sprintf("right (RFC 8439, Section 2.8.2); %d bytes in %.2f µs, %.1f Gbit/s a core", sealedSize,
			each.Seconds()*1e6, sealedSize*8/each.Seconds()/1e9)}
}

// features reports whether the CPU has the features that make the cipher fast: those that
// chacha20poly1305_amd64.go of x/crypto asks for.
func features() control.Condition {
	return judge(runtime.GOARCH, cpu.X86.HasSSSE3 && cpu.X86.HasAVX2 && cpu.X86.HasBMI2)
}

func judge(arch string, fast bool) control.Condition {
	c := control.Condition{Name: "CPU features", State: good}
	switch arch {
	case "amd64":
		c.Found = "AVX2, BMI2"
		if !fast {
			// Measured on one machine with and without GODEBUG=cpu.avx2=off: 3.9 and 1.0 µs for
			// 1,400 bytes.
			c.State, c.Found, c.Costs = poor, "no AVX2 with BMI2", "the cipher is about a quarter as fast"
			c.Remedy = "run on a machine, or with a CPU model of the virtual machine, that has AVX2 and BMI2"
		}
	case "arm64":
		c.Found = "ASIMD: ChaCha20 has assembly, Poly1305 has none; the cipher's rate tells"
	default:
		c.Found = "unknown on " + arch + "; the cipher's rate tells"
	}
	return c
}
