// Package cost measures, for tests, processor time and the unit of all budgets.
package cost

import (
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/unix"
)

// ProcessorTime returns the processor time that this process has used. Other work on the machine
// affects it less than wall-clock time.
func ProcessorTime(b testing.TB) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ThreadTime returns the processor time that this thread has used, which other work affects still
// less. (Getrusage knows it to a tick of the scheduler only.)
//
// Preconditions: the goroutine is locked to its thread.
func ThreadTime(b testing.TB) time.Duration {
	b.Helper()
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Nano())
}

// Seal measures a ChaCha20-Poly1305 seal of 1400 bytes, the unit of all budgets, in nanoseconds:
// the best of five.
func Seal(b testing.TB) float64 {
	b.Helper()
	best := SealOnce(b)
	for range 4 {
		best = min(best, SealOnce(b))
	}
	return best
}

// SealOnce is one measurement of Seal.
func SealOnce(b testing.TB) float64 {
	b.Helper()
	aead, err := chacha20poly1305.New(make([]byte, chacha20poly1305.KeySize))
	if err != nil {
		b.Fatal(err)
	}
	plain, nonce := make([]byte, 1400), make([]byte, aead.NonceSize())
	out := make([]byte, 0, 1500)
	const n = 20000
	begin := ProcessorTime(b)
	for range n {
		out = aead.Seal(out[:0], nonce, plain, nil)
	}
	return float64(ProcessorTime(b)-begin) / n
}
