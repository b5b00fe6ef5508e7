package geneve

import (
	"bytes"
	"testing"

	"culvert/geneve/genevetest"
)

// TestDecapECN goes through RFC 6040, Section 4.2, Figure 4.
func TestDecapECN(t *testing.T) {
	const drop = 0xff
	want := [4][4]uint8{ // [inner][outer], in the order of the code points: Not-ECT, ECT(1), ECT(0), CE
		notECT: {notECT: notECT, ect0: notECT, ect1: notECT, ce: drop},
		ect0:   {notECT: ect0, ect0: ect0, ect1: ect1, ce: ce},
		ect1:   {notECT: ect1, ect0: ect1, ect1: ect1, ce: ce},
		ce:     {notECT: ce, ect0: ce, ect1: ce, ce: ce},
	}
	for _, v6 := range []bool{false, true} {
		for inner := range uint8(4) {
			for outer := range uint8(4) {
				for _, dscp := range []uint8{0, 0xb8, 0xfc} {
					build := func(ecn uint8) []byte {
						if v6 {
							return genevetest.IP(pod6.Addr(), remotePod6.Addr(), 6, dscp|ecn, payload(1, 20))
						}
						return genevetest.IP(pod.Addr(), remotePod.Addr(), 6, dscp|ecn, payload(1, 20))
					}
					got := build(inner)
					ok := decapECN(got, 0x48|outer) // an outer DSCP must not come in
					if ok != (want[inner][outer] != drop) {
						t.Errorf("IPv6 %v, inner %d, outer %d: kept %v", v6, inner, outer, ok)
					}
					if ok && !bytes.Equal(got, build(want[inner][outer])) {
						t.Errorf("IPv6 %v, inner %d, outer %d: % x, want % x", v6, inner, outer, got[:20],
							build(want[inner][outer])[:20])
					}
				}
			}
		}
	}
}

// TestSetECNChecksum compares the incremental checksum with a full one over headers of every
// identification.
func TestSetECNChecksum(t *testing.T) {
	ip := genevetest.IP(pod.Addr(), remotePod.Addr(), 17, ect0, nil)
	for id := range 1 << 16 {
		ip[4], ip[5], ip[1] = byte(id>>8), byte(id), ect0
		ip[10], ip[11] = 0, 0
		sum := ^genevetest.Sum(ip)
		ip[10], ip[11] = byte(sum>>8), byte(sum)
		setECN(ip, ce)
		if got := genevetest.Sum(ip); got != 0xffff {
			t.Fatalf("identification %#x: checksum wrong after ECN: %#x", id, got)
		}
	}
}

// TestEncapECN sends packets with every code point: the outer header has it, without the DSCP, and
// a train has but one.
func TestEncapECN(t *testing.T) {
	f := newFixture(t)
	for _, ip := range [][]byte{
		genevetest.IP(pod.Addr(), remotePod.Addr(), 6, 0xb8|ect0, payload(1, 20)),
		genevetest.IP(pod.Addr(), remotePod.Addr(), 6, 0xb8|ect0, payload(2, 20)),
		genevetest.IP(pod.Addr(), remotePod.Addr(), 6, 0xb8|ce, payload(3, 20)),
		genevetest.IP(pod6.Addr(), remotePod6.Addr(), 6, 0xb8|ect1, payload(4, 20)),
		genevetest.IP(pod6.Addr(), remotePod6.Addr(), 6, 0xb8, payload(5, 20)),
	} {
		if r := f.s.Send(toIP, ip); r != Accepted {
			t.Fatal(r)
		}
	}
	f.s.Flush()
	for i, want := range []struct {
		datagrams int
		tos       uint8
	}{{2, ect0}, {1, ce}, {1, ect1}, {1, notECT}} {
		if got, tos := f.datagrams(f.node); len(got) != want.datagrams || tos != want.tos {
			t.Errorf("message %d: %d datagrams with outer TOS %#x, want %d with %#x", i, len(got), tos,
				want.datagrams, want.tos)
		}
	}
}
