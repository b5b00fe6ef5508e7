package integration

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"culvert/integration/lab/check"
	labfault "culvert/integration/lab/fault"
	"culvert/integration/lab/holder"
)

// TestLabFaults makes each fault in a lab, checks its symptom, and mends it.
func TestLabFaults(t *testing.T) {
	t.Parallel()
	labs := [][2]string{{"vxlan", "ipv4"}, {"vxlan", "v6-outside"}, {"geneve", "ipv4"}}
	if os.Getenv(longEnv) != "" {
		labs = append(labs, [2]string{"tun", "ipv4"}, [2]string{"vxlan", "v6-inside"},
			[2]string{"geneve", "v6-outside"}, [2]string{"tun", "v6-outside"})
	}
	for _, of := range labs {
		mode, kind := of[0], of[1]
		t.Run(mode+" "+kind, func(t *testing.T) {
			t.Parallel()
			u := newLabUser(t)
			if mode == "vxlan" {
				u = u.ordinary()
			}
			if u.need(mode); kind != "ipv4" {
				u.need("ipv6")
			}
			count, err := u.results(func(t *testing.T, r *check.Result) {
				if !r.OK {
					t.Errorf("%s: %s", r.Lab, r.Error)
				}
			}, kind, "--faults", "--mode", mode, "--offloads", "on")
			if err != nil {
				t.Error(err)
			}
			if least := len(labfault.All()) - 2; count < least { // without ARP in tun mode, two faults are missing
				t.Errorf("%d faults and other checks, want %d or more", count, least)
			}
			u.requireNothingLeft()
		})
	}
}

// quicklyNamed are faults of each kind that are named quickly.
const quicklyNamed = "both-clients,peer-off,rule-drops,wrong-remap-rome,wrong-vni,overlapping-cidrs"

// TestLabFaultsNamed: while traffic tries to use a path that a fault has broken, culvert status
// names the cause in the words of docs/faults.md, and everything else it says is true.
func TestLabFaultsNamed(t *testing.T) {
	t.Parallel()
	names, want := quicklyNamed, strings.Count(quicklyNamed, ",")+1
	if os.Getenv(longEnv) != "" {
		names, want = "all", len(labfault.All())
	}
	u := newLabUser(t).ordinary()
	u.need("vxlan")
	count, err := u.results(func(t *testing.T, r *check.Result) {
		if !r.OK {
			t.Errorf("%s: %s", r.Lab, r.Error)
		}
	}, "--named", names, "--mode", "vxlan", "--offloads", "on")
	if err != nil || count != want+2 { // start and stop
		t.Errorf("%d checks, want %d: %v", count, want+2, err)
	}
	u.requireNothingLeft()
}

// TestLabBreakMendRestart does what a user does who learns with the lab.
func TestLabBreakMendRestart(t *testing.T) {
	u := newLabUser(t).ordinary()
	u.need("vxlan")
	expect := u.expect
	expect(0, "missing-route", "break")
	expect(1, "none is up", "break", "missing-route")
	expect(0, "milan/pod2", "up", "--mode", "vxlan")
	t.Cleanup(func() { u.run("down") })
	expect(1, `no fault "missing-rout"; did you mean missing-route?`, "break", "missing-rout")
	expect(1, "the lab does not have this fault", "mend", "missing-route")
	expect(0, "rome/pod1 and milan do not reach each other", "break", "missing-route", "node-off")
	out, _ := u.run("status", "-o", "json")
	var s holder.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil || strings.Join(s.Broken, " ") != "missing-route node-off" {
		t.Errorf("faults %v (%v), want missing-route and node-off", s.Broken, err)
	}
	expect(1, "culvert-lab mend node-off", "restart", "rome/node1")
	expect(0, "left: missing-route", "mend", "node-off")
	expect(0, "rome/node1: restarted", "restart", "rome/node1")
	expect(0, "no fault", "mend")
	expect(1, "runs no culvert", "restart", "rome/pod1")
	expect(1, `no host "rome/pod3"`, "restart", "rome/pod3")
	expect(0, "milan/gateway: restarted", "restart", "milan/gateway")
	expect(0, "up: gone", "down")
	u.requireNothingLeft()
}
