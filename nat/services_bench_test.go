package nat_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/nattest/cost"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// BenchmarkFirstToService measures the SYN of a new client to one of 300 services, with and without
// affinity, and to a pod: in tables that grow from empty, and in those where the sender is at its
// share of connections and clients, so that each SYN replaces something. The three take turns,
// packets are made outside the measurement, and it prints medians.
func BenchmarkFirstToService(b *testing.B) {
	for _, v6 := range []bool{false, true} {
		family := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
		b.Run(family+"/growing", func(b *testing.B) { benchmarkSYNs(b, v6, 1<<18, 26_000, 0) })
		b.Run(family+"/making room", func(b *testing.B) { benchmarkSYNs(b, v6, 1<<16, 26_000, 3<<16) })
	}
}

// benchmarkSYNs measures some SYNs behind as many others as before says.
func benchmarkSYNs(b *testing.B, v6 bool, most, some, before int) {
	names := [...]string{"pod", "service", "affinity"}
	var costs [len(names)][]float64
	for range b.N {
		for range 12 {
			for kind := range names {
				e := engine(b, func(c *nat.Config) {
					c.MaxConnections = most
					c.Services = floodedServices(v6,
						map[bool]rules.Affinity{true: rules.AffinityClientIP}[names[kind] == "affinity"])
				})
				s := newSYNs(v6, names[kind] == "pod")
				s.send(b, e, before)
				costs[kind] = append(costs[kind], s.send(b, e, some)/float64(some))
			}
		}
	}
	for kind, name := range names {
		b.ReportMetric(middle(costs[kind]), "ns/"+name)
	}
	b.ReportMetric(middle(costs[2])-middle(costs[1]), "ns-of-affinity")
}

const flooded = 300

func floodedServices(v6 bool, affinity rules.Affinity) (all []rules.Service) {
	external, pod := [16]byte{0xfd, 0, 0, 0x70}, address("fd00:200:0:1::5")
	for i := range flooded {
		external[14], external[15] = byte(i>>8), byte(i)
		a := netip.AddrFrom16(external)
		if !v6 {
			a, pod = netip.AddrFrom4([4]byte{10, 70, 1 + byte(i>>8), byte(i)}), address("10.200.1.5")
		}
		all = append(all, rules.Service{Name: fmt.Sprint("sticky-", i), Address: a, Port: 80, Protocol: packet.TCP,
			Affinity: affinity,
			Backends: []rules.Backend{{Address: pod, Port: 8080}}})
	}
	return all
}

// synsTurn is how many packets are made at a time: they fit into a processor's own cache.
const synsTurn = 1 << 9

// syns are SYNs from the peer, each from a new client or to another service.
type syns struct {
	v6, toPod bool
	like      []byte
	made      uint32
	random    *rand.Rand
	work      [synsTurn][64]byte
}

func newSYNs(v6, toPod bool) *syns {
	p := tcp("10.200.0.1", "10.200.1.5", 1, 80, nattest.SYN, "")
	if v6 {
		p.Source, p.Destination = "fd00:200::1", "fd00:200:0:1::5"
	}
	return &syns{v6: v6, toPod: toPod, like: p.Bytes(), random: rand.New(rand.NewPCG(1, 2))}
}

func (s *syns) next(work []byte) []byte {
	p := work[:copy(work, s.like)]
	client, service := s.made%240+s.made/240/flooded*240, s.made/240%flooded
	s.made++
	if s.v6 {
		binary.BigEndian.PutUint32(p[20:], client)
		if !s.toPod {
			copy(p[24:], []byte{0xfd, 0, 0, 0x70, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(service >> 8), byte(service)})
		}
		binary.BigEndian.PutUint16(p[40:], uint16(s.random.Uint32()))
		return p
	}
	binary.BigEndian.PutUint16(p[14:], uint16(client))
	if !s.toPod {
		copy(p[16:], []byte{10, 70, 1 + byte(service>>8), byte(service)})
	}
	binary.BigEndian.PutUint16(p[20:], uint16(s.random.Uint32()))
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], nattest.Checksum(p[:20]))
	return p
}

// send processes the next n, and returns the processor time in nanoseconds.
func (s *syns) send(b *testing.B, e *nat.Engine, n int) (used float64) {
	packets := make([]packet.Packet, nat.MaxLoad)
	var made [synsTurn][]byte
	for ; n > 0; n -= synsTurn {
		for i := range made {
			made[i] = s.next(s.work[i][:])
		}
		begin := cost.ProcessorTime(b)
		for at := 0; at < synsTurn; at += nat.MaxLoad {
			for i := range packets {
				packets[i].Parse(made[at+i])
			}
			e.Load(packets, nat.Tunnel)
			for i := range packets {
				e.Process(&packets[i], nat.Tunnel, start)
			}
		}
		used += float64(cost.ProcessorTime(b) - begin)
	}
	if st := e.Stats(); st.Created < uint64(s.made)*3/4 {
		b.Fatalf("%d connections of %d SYNs", st.Created, s.made)
	}
	return used
}
