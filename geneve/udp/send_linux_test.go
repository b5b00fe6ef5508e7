package udp

import (
	"bytes"
	"errors"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// payload returns size bytes that depend on seed, so that no two datagrams are alike.
func payload(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// datagrams cuts a message at its segment size.
func datagrams(m Message) iter.Seq[[]byte] {
	if m.SegmentSize == 0 {
		return slices.Values([][]byte{m.Data})
	}
	return slices.Chunk(m.Data, m.SegmentSize)
}

// receive reads from s until want datagrams have come and returns copies of them. Each message goes
// through the checks.
func receive(t *testing.T, s *Socket, want int, checks ...func(Message)) (got [][]byte) {
	t.Helper()
	m := messages(4)
	for len(got) < want {
		n, err := s.Receive(m)
		need.NoError(t, err)
		for _, m := range m[:n] {
			for _, check := range checks {
				check(m)
			}
			for d := range datagrams(m) {
				got = append(got, slices.Clone(d))
			}
		}
	}
	return got
}

func TestSendReceive(t *testing.T) {
	offloads := map[string]Options{"offloads": {}, "no GSO": {NoGSO: true}, "no GRO": {NoGRO: true},
		"none": {NoGSO: true, NoGRO: true}}
	trains := []struct {
		name        string
		segment     int
		datagrams   []int // sizes
		partLengths []int // nil: one part per datagram
	}{
		{"one datagram", 0, []int{1300}, nil},
		{"one datagram in three parts", 0, []int{1300}, []int{22, 1200, 78}},
		{"a segment size above the datagram", 1400, []int{1300}, nil},
		{"three", 500, []int{500, 500, 500}, nil},
		{"shorter last", 1372, []int{1372, 1372, 1372, 41}, nil},
		{"one flat part", 600, []int{600, 600, 7}, []int{1207}},
		{"header and payload parts", 622, []int{622, 622, 100}, []int{22, 600, 22, 600, 22, 78}},
		{"parts across datagrams", 100, []int{100, 100, 100, 30}, []int{150, 10, 170}},
		{"longest by count", 1000, slices.Repeat([]int{1000}, MaxSegments), nil},
		{"longest by size", 1372, append(slices.Repeat([]int{1372}, 47), MaxPayload-47*1372), nil},
	}
	forEachFamily(t, func(t *testing.T, listen func(Options) *Socket) {
		for name, o := range offloads {
			for _, tt := range trains {
				t.Run(name+"/"+tt.name, func(t *testing.T) {
					from, to := listen(o), listen(o)
					var all []byte
					var want [][]byte
					for i, size := range tt.datagrams {
						want = append(want, payload(uint64(i), size))
						all = append(all, want[i]...)
					}
					train := Train{Destination: to.LocalAddr(), SegmentSize: tt.segment, Parts: want, TOS: 0x89}
					if tt.partLengths != nil {
						train.Parts = nil
						for rest := all; len(rest) > 0; {
							n := tt.partLengths[len(train.Parts)]
							train.Parts, rest = append(train.Parts, rest[:n]), rest[n:]
						}
					}
					sent, err := from.NewSender().Send([]Train{train})
					if err != nil || sent != len(want) {
						t.Fatalf("Send = %d, %v; want %d", sent, err, len(want))
					}
					got := receive(t, to, len(want), func(m Message) {
						if m.Source != from.LocalAddr() || m.TOS != 0x89 {
							t.Errorf("TOS %#x from %v, want 0x89 from %v", m.TOS, m.Source, from.LocalAddr())
						}
						if m.SegmentSize != 0 && o.NoGRO {
							t.Errorf("segment size %d without UDP_GRO", m.SegmentSize)
						}
					})
					if !slices.EqualFunc(got, want, bytes.Equal) {
						t.Errorf("%d datagrams received differ from the %d sent", len(got), len(want))
					}
					st := from.Stats()
					if st.SentDatagrams != uint64(len(want)) || st.SentBytes != uint64(len(all)) {
						t.Errorf("stats count %d datagrams of %d bytes, want %d of %d", st.SentDatagrams, st.SentBytes,
							len(want), len(all))
					}
				})
			}
		}
	})
}

// TestTrainStaysWhole shows that the offloads are in use, not only harmless.
func TestTrainStaysWhole(t *testing.T) {
	forEachFamily(t, func(t *testing.T, listen func(Options) *Socket) {
		from, to := listen(Options{}), listen(Options{})
		st := from.Stats()
		need.Offloads(t, st.GSO && st.GRO)
		train := Train{Destination: to.LocalAddr(), SegmentSize: 1372, Parts: [][]byte{payload(1, 40*1372+5)}}
		if _, err := from.NewSender().Send([]Train{train}); err != nil {
			t.Fatal(err)
		}
		m := messages(2)
		n, err := to.Receive(m)
		if err != nil || n != 1 {
			t.Fatalf("Receive = %d, %v; want one message", n, err)
		}
		if m[0].SegmentSize != 1372 || !bytes.Equal(m[0].Data, train.Parts[0]) {
			t.Errorf("message of %d bytes, segment %d", len(m[0].Data), m[0].SegmentSize)
		}
		if st := from.Stats(); st.SendCalls != 1 || st.SentDatagrams != 41 {
			t.Errorf("%d datagrams in %d calls, want 41 in 1", st.SentDatagrams, st.SendCalls)
		}
		if st := to.Stats(); st.ReceiveCalls != 1 || st.ReceivedMessages != 1 ||
			st.ReceivedBytes != uint64(len(train.Parts[0])) {
			t.Errorf("receiver counts %+v", st)
		}
	})
}

// TestBatchAcrossCalls sends more messages than one sendmmsg takes, mixing trains and single
// datagrams.
func TestBatchAcrossCalls(t *testing.T) {
	forEachFamily(t, func(t *testing.T, listen func(Options) *Socket) {
		for _, single := range []bool{false, true} {
			from, to := listen(Options{}), listen(Options{})
			var trains []Train
			var want [][]byte
			for i := range 150 {
				tr := Train{Destination: to.LocalAddr(), Single: single}
				if i%3 == 0 {
					tr.SegmentSize = 50 + i
					for j := range i%7 + 2 {
						tr.Parts = append(tr.Parts, payload(uint64(100*i+j), tr.SegmentSize))
					}
				} else {
					tr.Parts = [][]byte{payload(uint64(i), 20+i)}
				}
				want = append(want, tr.Parts...)
				trains = append(trains, tr)
			}
			if sent, err := from.NewSender().Send(trains); err != nil || sent != len(want) {
				t.Fatalf("Send = %d, %v; want %d", sent, err, len(want))
			}
			got := receive(t, to, len(want))
			if !slices.EqualFunc(got, want, bytes.Equal) {
				t.Errorf("single %v: datagrams lost, changed or out of order", single)
			}
		}
	})
}

// TestRefusedTrain sends a train with more segments than any kernel takes.
func TestRefusedTrain(t *testing.T) {
	forEachFamily(t, func(t *testing.T, listen func(Options) *Socket) {
		from, to := listen(Options{}), listen(Options{})
		need.Offloads(t, from.Stats().GSO)
		before, after := payload(1, 10), payload(2, 20)
		trains := []Train{
			{Destination: to.LocalAddr(), Parts: [][]byte{before}},
			{Destination: to.LocalAddr(), SegmentSize: 100, Parts: [][]byte{payload(3, 300*100)}},
			{Destination: to.LocalAddr(), Parts: [][]byte{after}},
		}
		sent, err := from.NewSender().Send(trains)
		if sent != 302 || err != nil {
			t.Fatalf("Send = %d, %v; want 302", sent, err)
		}
		if !trains[1].Single || trains[0].Single || trains[2].Single {
			t.Errorf("Single is %v %v %v, want only the second", trains[0].Single, trains[1].Single, trains[2].Single)
		}
		got := receive(t, to, 302)
		want := append(append([][]byte{before}, slices.Collect(slices.Chunk(trains[1].Parts[0], 100))...), after)
		if !slices.EqualFunc(got, want, bytes.Equal) {
			t.Error("datagrams lost, changed or out of order")
		}
		if st := from.Stats(); st.RefusedTrains != 1 || !st.GSO {
			t.Errorf("refused trains %d, GSO %v; want 1, true", st.RefusedTrains, st.GSO)
		}
	})
}

// TestUndeliverable mixes datagrams that the kernel refuses into a batch: the others arrive.
func TestUndeliverable(t *testing.T) {
	from, to := listen(t, "udp4", families[0].loopback, Options{}), listen(t, "udp4", families[0].loopback, Options{})
	tests := []struct {
		name   string
		train  Train
		reason Reason
		errno  error
		lost   uint64
	}{
		{"broadcast without SO_BROADCAST", Train{Destination: netip.MustParseAddrPort("255.255.255.255:9"),
			Parts: [][]byte{{1}}}, NotPermitted, unix.EACCES, 1},
		{"port 0", Train{Destination: netip.MustParseAddrPort("127.0.0.1:0"), Parts: [][]byte{{1}}}, Invalid,
			unix.EINVAL, 1},
		{"train to port 0", Train{Destination: netip.MustParseAddrPort("127.0.0.1:0"), SegmentSize: 2,
			Parts: [][]byte{{1, 2}, {3, 4}, {5}}}, Invalid, unix.EINVAL, 3},
		{"too big", Train{Destination: to.LocalAddr(), Parts: [][]byte{make([]byte, MaxPayload+1)}}, TooBig,
			unix.EMSGSIZE, 1},
		{"other family", Train{Destination: netip.MustParseAddrPort("[::1]:9"), Parts: [][]byte{{1}}}, Invalid,
			unix.EAFNOSUPPORT, 1},
		{"no address", Train{Destination: netip.AddrPortFrom(netip.Addr{}, to.LocalAddr().Port()),
			Parts: [][]byte{{1}}}, Invalid, unix.EAFNOSUPPORT, 1},
	}
	sender := from.NewSender()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			first, last := payload(1, 30), payload(2, 40)
			before := from.Stats()
			trains := []Train{{Destination: to.LocalAddr(), Parts: [][]byte{first}}, tt.train,
				{Destination: to.LocalAddr(), Parts: [][]byte{last}}}
			sent, err := sender.Send(trains)
			if trains[0].Sent != 1 || trains[1].Sent != 0 || trains[2].Sent != 1 {
				t.Errorf("Sent %d, %d, %d; want 1, 0, 1", trains[0].Sent, trains[1].Sent, trains[2].Sent)
			}
			if sent != 2 || !errors.Is(err, tt.errno) {
				t.Errorf("Send = %d, %v; want 2, %v", sent, err, tt.errno)
			}
			got := receive(t, to, 2)
			if !slices.EqualFunc(got, [][]byte{first, last}, bytes.Equal) {
				t.Error("neighbours of the refused datagram lost or changed")
			}
			after := from.Stats()
			for r := range after.SendDrops {
				want := before.SendDrops[r]
				if Reason(r) == tt.reason {
					want += tt.lost
				}
				if after.SendDrops[r] != want {
					t.Errorf("%v: %d drops, want %d", Reason(r), after.SendDrops[r], want)
				}
			}
		})
	}
}

func TestReasonOf(t *testing.T) {
	for errno, want := range map[syscall.Errno]Reason{
		unix.ECONNREFUSED: Unreachable, unix.ENETUNREACH: Unreachable, unix.EHOSTUNREACH: Unreachable,
		unix.ENETDOWN:      Unreachable,
		unix.EADDRNOTAVAIL: Unreachable,
		unix.ENOBUFS:       NoBuffer, unix.ENOMEM: NoBuffer, unix.EMSGSIZE: TooBig, unix.EPERM: NotPermitted,
		unix.EACCES: NotPermitted,
		unix.EINVAL: Invalid, unix.EBADMSG: Invalid,
	} {
		if got := reasonOf(errno); got != want {
			t.Errorf("reasonOf(%v) = %v, want %v", errno, got, want)
		}
	}
	seen := map[string]bool{}
	for r := range numReasons + 1 {
		if name := r.String(); seen[name] || name == "" {
			t.Errorf("reason %d has the name %q", r, name)
		} else {
			seen[name] = true
		}
	}
}
