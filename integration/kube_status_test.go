package integration

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// requireStatus runs culvert status as kubectl exec would: inside the pod, without arguments that
// name the gateway.
func (k *kubeLab) requireStatus(t *testing.T, p *peerProcess, uid, gid uint32) {
	t.Helper()
	exec := func(args ...string) string {
		id := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
		enter := []string{"--target", strconv.Itoa(p.cmd.Process.Pid), "--mount", "--setgid", id(gid), "--setuid",
			id(uid), "--", "env", "-i", os.Getenv(binaryEnv)}
		out, err := k.gatewayHost.try("", "nsenter", append(enter, args...)...)
		if err != nil {
			t.Error(err)
		}
		return out
	}
	bridge := firewall(liqoNamespace, "left-out", "left-out", subcategory("all-gateways"))
	table := field(bridge, "spec", "table").(object)
	table["family"], table["chains"] = "BRIDGE", []object{}
	k.liqo.apply(bridge)
	const left = "left out: FirewallConfiguration/" + liqoNamespace + "/left-out: spec.table.family:"
	eventually(t, "status", func() error {
		if out := exec("status"); !strings.Contains(out, left) ||
			!strings.HasPrefix(out, "gateway "+k.liqo.tenant()+"/"+k.liqo.account()+" to ") {
			return errNotYet
		}
		return nil
	})
	if out := exec("rules"); !strings.Contains(out, left) {
		t.Errorf("rules: %s", out)
	}
	if out := exec("status", "-o", "json"); !strings.Contains(out, `"waiting": [`) ||
		!strings.Contains(out, `"ready": true`) {
		t.Errorf("status -o json: %s", out)
	}
}
