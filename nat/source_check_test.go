package nat_test

import (
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
)

// TestNodesSpeakForThemselves: whatever node 1 sends as a pod of node 2, nothing reaches the remote
// cluster: first packets, packets that match a connection of that pod, fragments and ICMP errors.
// With the check for the whole cluster, everything does.
func TestNodesSpeakForThemselves(t *testing.T) {
	const pod, remote, remoteSeen = "10.200.2.5", "10.200.3.9", "10.71.3.9"
	forged := udp(pod, remoteSeen, 80, 7)
	called := udp(remote, pod, 7, 80) // the remote pod opens a connection to the pod
	arrived := udp(remoteSeen, pod, 7, 80)
	late := nattest.Pieces(forged, 8, 1)[1]
	unreachable := nattest.IP{Source: "10.80.0.2", Destination: remoteSeen, Body: nattest.ICMP{Type: 3, Code: 3,
		Payload: arrived.Bytes()}}
	tests := []struct {
		name   string
		opened []nattest.IP // from the tunnel or, if its source is the pod, from node 2
		sent   []byte
	}{
		{"a first packet", nil, forged.Bytes()},
		{"over a connection that was opened to the pod", []nattest.IP{called}, forged.Bytes()},
		{"over one that both ends use", []nattest.IP{called, forged}, forged.Bytes()},
		{"with the tuple of one that the pod has opened", []nattest.IP{forged}, forged.Bytes()},
		{"a later fragment without its first", nil, late},
		{"a later fragment over a connection", []nattest.IP{called}, late},
		{"as a longer prefix's host", nil, udp("10.200.1.77", remoteSeen, 80, 7).Bytes()},
		{"as another node", nil, udp("10.80.0.3", remoteSeen, 80, 7).Bytes()},
		{"to the gateway itself", nil, udp(pod, "10.80.0.4", 80, 7).Bytes()},
		{"to its own pod", nil, udp(pod, "10.200.1.5", 80, 7).Bytes()},
		{"an ICMP error of the pod", []nattest.IP{called}, nattest.IP{Source: pod, Destination: remoteSeen,
			Body: nattest.ICMP{Type: 3, Code: 3, Payload: arrived.Bytes()}}.Bytes()},
		{"an ICMP error about what the pod was sent", []nattest.IP{called}, unreachable.Bytes()},
		{"an ICMP error about what the pod could have been sent", nil, unreachable.Bytes()},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			open := func(e *nat.Engine) {
				for _, p := range test.opened {
					in := nat.Tunnel
					if p.Source == pod {
						in = node2
					}
					forwarded(t, e, in, p.Bytes(), start)
				}
			}
			e := engine(t)
			open(e)
			dropped(t, e, node1, test.sent, start, nat.ReasonBadSource)
			ledger(t, e)
			open(e) // the connection continues

			e = engine(t, speakForAll)
			open(e)
			if v, _ := process(t, e, node1, test.sent, start); v.Action == nat.Drop && v.Reason != nat.ReasonNoRoute {
				t.Errorf("with the check for the cluster: %v", v.Reason)
			}
		})
	}
}

// TestSourceFollowsRoutes: a pod CIDR moves to another node. From then on the old node is refused,
// also on open connections without traffic from the other side; when the CIDR moves back, the other
// node is.
func TestSourceFollowsRoutes(t *testing.T) {
	e := engine(t)
	call, answer := udp("10.200.3.9", "10.200.2.5", 7, 80), udp("10.200.2.5", "10.71.3.9", 80, 7)
	forwarded(t, e, nat.Tunnel, call.Bytes(), start)
	home, other := node2, node1
	for range 3 {
		forwarded(t, e, home, answer.Bytes(), start)
		dropped(t, e, other, answer.Bytes(), start, nat.ReasonBadSource)
		home, other = other, home
		c := rome()
		c.Routes[1].Link = home
		need.NoError(t, e.Apply(c))
		dropped(t, e, other, answer.Bytes(), start, nat.ReasonBadSource)
	}
	c := rome()
	c.Routes[1].Link = home
	speakForAll(c)
	need.NoError(t, e.Apply(c))
	if v, _, _ := forwarded(t, e, other, answer.Bytes(), start); !v.Asymmetric {
		t.Error("from another node, and not counted as asymmetric")
	}
	if st := e.Stats(); st.Connections != 1 || st.Created != 1 {
		t.Errorf("%d connections of %d", st.Connections, st.Created)
	}
}

// TestPrepareLeavesNoTrace: what is prepared but not committed has no effect.
func TestPrepareLeavesNoTrace(t *testing.T) {
	e := engine(t)
	p := udp("10.200.1.5", "10.71.3.9", 1, 2)
	forwarded(t, e, node1, p.Bytes(), start)
	c := rome()
	c.Remote[0].Remapped = prefix("10.75.0.0/16")
	prepared, err := e.Prepare(c)
	need.NoError(t, err)
	before := e.Stats()
	if e.Sweep(start); e.Stats() != before {
		t.Errorf("%+v before, %+v after", before, e.Stats())
	}
	forwarded(t, e, node1, p.Bytes(), start)
	e.Commit(prepared)
	dropped(t, e, node1, p.Bytes(), start, nat.ReasonNoRoute)
	if n := e.Stats().Evicted; n != 1 {
		t.Errorf("%d evicted, want 1", n)
	}
}
