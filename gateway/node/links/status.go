package links

import (
	"fmt"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/prometheus"
	"culvert/geneve"
	"culvert/geneve/udp"
)

// overflow is the reason for packets lost before this process could read them: the socket's receive
// buffer was full.
const overflow = "overflow"

// Show adds the state of each link to n.
func (s *Set) Show(n *control.NodeStatus) {
	n.Links = []control.NodeLink{}
	select {
	case <-s.held:
	default:
		n.Waiting = append(n.Waiting, "another culvert node with --liqo or --kube, which keeps the links of this node")
	}
	for _, st := range s.Statuses() {
		l := control.NodeLink{
			Interface: st.Link.Name, State: string(st.State), Warning: st.Warning, VNI: uint32(st.Link.VNI),
			MTU:      st.Link.MTU,
			Underlay: st.Link.Remote, Address: st.Link.Address.First(), GatewayAddress: st.Link.Gateway.First(),
			Addresses: st.Link.Address.All(), GatewayAddresses: st.Link.Gateway.All(),
			Answers: st.Answers, ReceivedPackets: st.ReceivedPackets, SentPackets: st.SentPackets,
			ReceivedBytes: st.ReceivedBytes, SentBytes: st.SentBytes,
		}
		if st.Err != nil {
			l.Fault = st.Err.Error()
		}
		if st.RTT > 0 {
			rtt := st.RTT.Round(time.Microsecond).Seconds()
			l.RTTSeconds = &rtt
		}
		n.Links = append(n.Links, l)
	}
	s.eachDrop(func(reason string, packets uint64) {
		if packets > 0 {
			n.LinkDrops = append(n.LinkDrops, control.Drop{Reason: reason, Packets: packets})
		}
	})
}

// eachDrop calls yield for each counter of dropped packets.
func (s *Set) eachDrop(yield func(reason string, packets uint64)) {
	var st geneve.Stats
	if e := s.hub.Endpoint(); e != nil {
		st = e.Stats()
	}
	for r := geneve.Accepted + 1; r < geneve.NumReasons; r++ {
		yield(r.String(), st.Drops[r])
	}
	yield(overflow, st.Socket.Overflows)
	if s.others != nil {
		s.others(yield)
	}
}

// AlsoDropped adds counters of packets for links that others drop. It must be called before Run.
func (s *Set) AlsoDropped(others func(yield func(reason string, packets uint64))) { s.others = others }

// Devices returns the names of the devices that this process reads.
func (s *Set) Devices() (names []string) {
	for _, d := range s.hub.Devices() {
		names = append(names, d.Name)
	}
	return names
}

// Socket returns the counters of the socket to gateways; all zero while there is no link to carry.
func (s *Set) Socket() udp.Stats { return s.hub.Socket() }

// Fault names a desired link that does not exist, and why; "" if all exist.
func (s *Set) Fault() string {
	for _, st := range s.Statuses() {
		if st.State == Refused {
			return fmt.Sprintf("%s: %v", st.Link.Name, st.Err)
		}
	}
	return ""
}

// linkFamilies are the metrics of each carried link.
var linkFamilies = []struct {
	kind, name, help string
	value            func(*Status) float64
}{
	{prometheus.Gauge, "answers", "1 if the link's gateway has answered in the last seconds.",
		func(st *Status) float64 {
			if st.Answers {
				return 1
			}
			return 0
		}},
	{prometheus.Gauge, "rtt_seconds", "Time to the link's gateway and back; 0 where nothing tells.",
		func(st *Status) float64 { return st.RTT.Seconds() }},
	{prometheus.Counter, "received_packets_total", "Inner packets received from the link's gateway.",
		func(st *Status) float64 { return float64(st.ReceivedPackets) }},
	{prometheus.Counter, "received_bytes_total", "Bytes of inner packets received from the link's gateway.",
		func(st *Status) float64 { return float64(st.ReceivedBytes) }},
	{prometheus.Counter, "sent_packets_total", "Inner packets sent to the link's gateway.", func(st *Status) float64 {
		return float64(st.SentPackets)
	}},
	{prometheus.Counter, "sent_bytes_total", "Bytes of inner packets sent to the link's gateway.",
		func(st *Status) float64 { return float64(st.SentBytes) }},
}

// Metrics returns the counters in Prometheus' text format, under the names that gateways use.
func (s *Set) Metrics() string {
	var b prometheus.Page
	all := s.Statuses()
	states := map[State]int{}
	for i := range all {
		states[all[i].State]++
	}
	b.Family(prometheus.Gauge, "links", "Links that are asked for, by state.", "state")
	for _, state := range []State{Carried, Kernel, Pending, Refused} {
		b.Add(float64(states[state]), string(state))
	}
	for _, f := range linkFamilies {
		b.Family(f.kind, "link_"+f.name, f.help, "interface")
		for i := range all {
			if all[i].State == Carried {
				b.Add(f.value(&all[i]), all[i].Link.Name)
			}
		}
	}
	b.Family(prometheus.Counter, "dropped_packets_total", "Packets of links dropped, by reason.", "reason")
	s.eachDrop(func(reason string, packets uint64) {
		b.Count(packets, reason)
	})
	return b.Text.String()
}
