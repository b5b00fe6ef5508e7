package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/integration/lab"
	"culvert/integration/need"
	"culvert/kube/manifests"
	"culvert/kube/manifests/manifeststest"
)

// testRealMessages joins the clusters by an invitation and its answer.
func testRealMessages(t *testing.T, l *realLab, before map[string][]string) {
	invitation := l.message("invite", "--context", "milan", "--peer", "rome", "--image="+realImage, "--yes")
	answer := l.message("accept", "--context", "rome", "--image="+realImage, "--yes", invitation)
	l.must("accept", "--context", "milan", "--yes", answer)
	l.meet()
	l.leave(t, before)
}

// message runs a command of culvert that prints a message for the other cluster, and returns a file
// with it.
func (l *realLab) message(args ...string) string {
	l.t.Helper()
	out, err := l.command("shell", append([]string{l.program}, args...)...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		l.t.Fatalf("culvert %q: %v\n%s", args, err, exit.Stderr)
	}
	need.NoError(l.t, err)
	file := filepath.Join(l.t.TempDir(), "message")
	need.NoError(l.t, os.WriteFile(file, out, 0o600))
	return file
}

// peerings returns both Peerings as an administrator would write them. rome reads pods' addresses
// from Pods, and imports what milan exports.
func (l *realLab) peerings() (rome, milan string) {
	const text = `
apiVersion: culvert.io/v1alpha1
kind: Peering
metadata: {name: PEER, namespace: culvert}
spec:
  cluster: OWN
  peer: PEER
  internalCIDR: 10.80.0.0/22
  local: {podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.0.0/24}
  remote:
    podCIDRs: [{cidr: 10.244.0.0/16, remap: 10.61.0.0/16}]
    externalCIDR: {cidr: 10.70.0.0/24, remap: 10.71.0.0/24}
`
	port := l.kubectl("milan", "-n", "culvert", "get", "service", "culvert-rome", "-o",
		"jsonpath={.spec.ports[0].nodePort}")
	return strings.NewReplacer("OWN", "rome", "PEER", "milan").Replace(text) +
			"  role: Client\n  podsFrom: Pods\n  imports: milan\n  endpoint: 172.30.0.21:" + port + "\n",
		strings.NewReplacer("OWN", "milan", "PEER", "rome").Replace(text) + "  role: Server\n"
}

// exchange makes Peerings and gives each gateway the key of the other.
func (l *realLab) exchange(t *testing.T) {
	t.Helper()
	rome, milan := l.peerings()
	specs := map[string]string{"rome": rome, "milan": milan}
	keys := map[string]string{}
	for i, cluster := range realNames {
		l.apply(cluster, specs[cluster])
		eventuallyWithin(t, kubeStartTimeout, cluster+" has a key", func() error {
			if keys[cluster] = l.kubectl(cluster, "-n", "culvert", "get", "peering", realNames[1-i], "-o",
				"jsonpath={.status.publicKey}"); keys[cluster] == "" {
				return errNotYet
			}
			return nil
		})
	}
	for i, cluster := range realNames {
		l.apply(cluster, specs[cluster]+"  publicKey: "+keys[realNames[1-i]]+"\n")
	}
}

// testRealTemplate joins the clusters by the output of culvert kube template, and uses an exported
// Service by its name.
func testRealTemplate(t *testing.T, l *realLab, before map[string][]string) {
	l.kubectl("rome", "create", "namespace", "milan")
	l.apply("rome", l.must("kube", "template", "--image="+realImage, "--peering=milan", "--expose=ClusterIP",
		"--imports=milan"))
	l.apply("milan", l.must("kube", "template", "--image="+realImage, "--peering=rome", "--expose=NodePort"))
	l.exchange(t)
	l.meet()
	const exported = "apiVersion: v1\nkind: Service\nmetadata: {name: hello, namespace: default, labels: {culvert/export: 'true'}}\n" +
		"spec: {selector: {app: hello}, ports: [{port: %d, targetPort: 8080}]}\n"
	l.apply("milan", fmt.Sprintf(exported, 80))
	address := ""
	eventuallyWithin(t, kubeStartTimeout, "rome imports the Service", func() error {
		out, err := l.command("shell", "kubectl", "--context", "rome", "-n", "milan", "get", "service", "hello-default",
			"-o", "jsonpath={.spec.clusterIP}").Output()
		address = string(out)
		return err
	})
	pod := l.pod("rome", "default/hello-2")
	eventuallyWithin(t, kubeStartTimeout, "a pod of rome uses it", func() error {
		conn, err := pod.dial("tcp4", address+":80")
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	l.apply("milan", fmt.Sprintf(exported, 81))
	eventuallyWithin(t, kubeStartTimeout, "rome follows", func() error {
		if port := l.kubectl("rome", "-n", "milan", "get", "service", "hello-default", "-o",
			"jsonpath={.spec.ports[0].port}"); port != "81" {
			return fmt.Errorf("port %s", port)
		}
		return nil
	})
	l.apply("milan",
		"apiVersion: v1\nkind: Service\nmetadata: {name: headless, namespace: default, labels: {culvert/export: 'true'}}\nspec: {clusterIP: None, selector: {app: hello}, ports: [{port: 80}]}\n")
	eventuallyWithin(t, kubeStartTimeout, "milan says why a Service is refused", func() error {
		if events := l.kubectl("milan", "-n", "culvert", "get", "events", "-o",
			"jsonpath={.items[*].message}"); !strings.Contains(events, "headless") {
			return errors.New(events)
		}
		return nil
	})
	l.must("leave", "--all", "--yes", inBoth[0], inBoth[1])
	l.kubectl("milan", "delete", "service", "hello", "headless")
	l.kubectl("rome", "delete", "namespace", "milan")
	l.requireAsBefore(t, before)
}

// testRealChart joins the clusters by the Helm chart, and removes everything by deleting its
// objects.
func testRealChart(t *testing.T, l *realLab, before map[string][]string) {
	chart := func(peer, expose, imports string) string {
		text, err := manifeststest.Render(manifests.Chart(), map[string]any{"image": realImage,
			"peerings": []any{map[string]any{"name": peer, "expose": expose, "imports": imports}}})
		need.NoError(t, err)
		return text
	}
	texts := map[string]string{"rome": chart("milan", "ClusterIP", "milan"), "milan": chart("rome", "NodePort", "")}
	l.kubectl("rome", "create", "namespace", "milan")
	for cluster, text := range texts {
		l.apply(cluster, text)
	}
	l.exchange(t)
	l.meet()
	l.kubectl("milan", "expose", "pod", "hello-1", "--port=8080", "--labels=culvert/export=true")
	eventuallyWithin(t, kubeStartTimeout, "rome imports the Service", func() error {
		return l.command("shell", "kubectl", "--context", "rome", "-n", "milan", "get", "service",
			"hello-1-default").Run()
	})
	for cluster, text := range texts {
		file := filepath.Join(t.TempDir(), cluster)
		need.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		l.kubectl(cluster, "delete", "--wait", "--timeout=90s", "-f", file)
	}
	eventuallyWithin(t, kubeStartTimeout, "the import is removed with its Role", func() error {
		if left := l.kubectl("rome", "-n", "milan", "get", "services,endpointslices", "-o", "name"); left != "" {
			return errors.New(left)
		}
		return nil
	})
	l.kubectl("milan", "delete", "service", "hello-1")
	l.kubectl("rome", "delete", "namespace", "milan")
	l.requireAsBefore(t, before)
}

// requireRights fails if a request was forbidden and, if all is true, if an account of culvert has
// a right that it has not used.
func (l *realLab) requireRights(t *testing.T, all bool) {
	t.Helper()
	used := map[string]bool{} // by account, without the name of its Peering
	for _, cluster := range realNames {
		log, err := lab.ReadLines(filepath.Join(l.dir, cluster, "audit.log"))
		need.NoError(t, err)
		for line := range strings.Lines(log) {
			var e auditEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			// Nothing can be made in a namespace that is being deleted, whatever the rights, such
			// as the last Event of a gateway.
			if e.ResponseStatus.Code == 403 && !strings.Contains(e.ResponseStatus.Message,
				"because it is being terminated") {
				t.Errorf("%s: %s: %s %s was refused: %s", cluster, e.User.Username, e.Verb, e.RequestURI,
					e.ResponseStatus.Message)
			}
			account := "culvert-gateway"
			if e.User.Username == agentUser {
				account = "culvert-node"
			}
			used[account+" "+e.right()] = true
		}
	}
	for _, right := range grantedRights(t) {
		if !used[right] {
			if all {
				t.Errorf("a right was never used: %s", right)
			} else {
				t.Logf("a right was not used here: %s", right)
			}
		}
	}
}

// grantedRights returns the rights that the manifests grant, by account.
func grantedRights(t *testing.T) (all []string) {
	t.Helper()
	text := manifests.Common(manifests.Image, nil) + "\n---\n" + (&manifests.Gateway{Peering: "milan",
		Image: manifests.Image, Expose: "NodePort", Imports: "milan", Replicas: 1}).YAML()
	for document := range strings.SplitSeq(text, "\n---\n") {
		var role struct {
			Kind     string
			Metadata struct{ Name string }
			Rules    []struct{ APIGroups, Resources, Verbs []string }
		}
		need.NoError(t, yaml.Unmarshal([]byte(document), &role))
		account := "culvert-gateway"
		if role.Metadata.Name == "culvert-node" {
			account = "culvert-node"
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						all = append(all, fmt.Sprintf("%s %s %s/%s", account, verb, group, resource))
					}
				}
			}
		}
	}
	if len(all) < 25 {
		t.Fatalf("the manifests have %d rights", len(all))
	}
	return all
}
