package handover

import (
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// TestCatchUp: rounds go on while they take long, but not for ever.
func TestCatchUp(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes []time.Duration // of each round
	}{
		{"little changes", []time.Duration{0}},
		{"less and less", []time.Duration{80e6, 20e6, 9e6}},
		{"always as much", []time.Duration{10e6, 10e6, 10e6, 10e6, 10e6}},
	} {
		rounds := 0
		err := catchUp(func() (time.Duration, error) {
			rounds++
			return c.takes[rounds-1], nil
		})
		if err != nil || rounds != len(c.takes) {
			t.Errorf("%s: %d rounds, want %d: %v", c.name, rounds, len(c.takes), err)
		}
	}
	if err := catchUp(func() (time.Duration, error) { return time.Second, io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("a round that fails: %v", err)
	}
}

// TestOffer: the new process finds descriptors by name. What is offered without one has none, and a
// second of a name is closed.
func TestOffer(t *testing.T) {
	lines := newLines(t, unix.SOCK_SEQPACKET)
	var all []Opened
	var pipes []*os.File
	for _, name := range []string{"lock", "page", "lock"} {
		out, in, err := os.Pipe()
		need.NoError(t, err)
		t.Cleanup(func() { out.Close() })
		all, pipes = append(all, Open(name, "at "+name, in)), append(pipes, in)
	}
	all = append([]Opened{{Socket: Socket{Name: "geneve", At: "6091"}}}, all...)
	need.NoError(t, lines[0].SendOffer(&Offer{Version: "v1"}, all))
	offer, files, err := lines[1].WantOffer()
	need.NoError(t, err)
	defer files.Close()
	want := []Socket{{"lock", "at lock"}, {"page", "at page"}, {"lock", "at lock"}, {"geneve", "6091"}}
	if offer.Version != "v1" || !slices.Equal(offer.Sockets, want) || len(files) != 2 {
		t.Fatalf("received %+v with %d files", offer, len(files))
	}
	for i, name := range []string{"lock", "page"} {
		f := files.Use(name)
		if f == nil || files.Use(name) != nil {
			t.Fatalf("%s is there %v, and once more %v", name, f != nil, files.Use(name) != nil)
		}
		same := func(f *os.File) (s os.FileInfo) { s, err = f.Stat(); need.NoError(t, err); return s }
		if !os.SameFile(same(f), same(pipes[i])) {
			t.Errorf("%s is another file", name)
		}
		f.Close()
	}
	if l, err := files.Listener("page"); l != nil || err != nil {
		t.Errorf("a listener that was not offered: %v, %v", l, err)
	}
}
