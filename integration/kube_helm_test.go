package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"culvert/integration/need"
	"culvert/kube/manifests/manifeststest"
)

// helm probes for Helm's program.
var helm = probe{"helm", func(testing.TB) error {
	if _, err := os.Stat(helmProgram()); err != nil {
		return fmt.Errorf("%w; see make kube-helm", err)
	}
	return nil
}}

func helmProgram() string { return filepath.Join(os.Getenv(kubeAssetsEnv), "helm") }

// optionsOff are the peerings of manifeststest.Everything alone.
const optionsOff = "image: registry.example/culvert:1.0\npeerings:\n- {name: milan, expose: LoadBalancer}\n" +
	"- {name: turin-2, expose: NodePort}\n- {name: oslo, expose: ClusterIP}\n"

// TestKubeHelm: Helm itself renders of the chart what culvert kube template prints, and installs,
// upgrades and removes it: an upgrade leaves what an installation makes, a removal nothing.
func TestKubeHelm(t *testing.T) {
	beside(t, func(t *testing.T) {
		host := newPeerHost(t, "rome")
		host.ip("link add api type bridge", "link set api up", "address add 172.18.0.5/24 dev api")
		l := &helmLab{t: t, api: startKubeAPI(host, "172.18.0.5"), dir: t.TempDir()}
		t.Setenv("HOME", l.dir) // where Helm keeps its own files
		t.Setenv("KUBECONFIG", l.api.kubeconfig(adminToken))
		l.prepare()
		eventually(t, "the API server has made its own Service", func() error {
			_, err := l.api.admin.get(object{"apiVersion": "v1", "kind": "Service",
				"metadata": object{"namespace": "default", "name": "kubernetes"}})
			return err
		})
		before := l.api.everything(t)
		made := map[string]map[string]object{}
		for name, text := range map[string]string{"all": manifeststest.Everything, "off": optionsOff,
			"gateways": "gatewaysOnly: true\n" + manifeststest.Everything} {
			need.NoError(t, os.WriteFile(l.values(name), []byte(text), 0o600))
			made[name] = l.rendered(name)
		}
		var installed []map[string]object // after each step
		for _, names := range [][]string{{"all", "off"}, {"off", "all"}} {
			l.helm("install", "culvert", helmChart, "--values", l.values(names[0]))
			installed = append(installed, l.stored(made, names[0]))
			l.helm("upgrade", "culvert", helmChart, "--values", l.values(names[1]))
			installed = append(installed, l.stored(made, names[1]))
			l.helm("uninstall", "culvert")
			for _, namespace := range []string{agentNamespace, peeringNamespace} {
				l.api.finalize(namespace)
			}
			eventually(t, "the API server forgets culvert's kinds", func() error {
				var has struct{ Groups []struct{ Name string } }
				need.NoError(t, l.api.admin.request(http.MethodGet, "/apis", "", nil, &has))
				for _, group := range has.Groups {
					if group.Name == "culvert.io" {
						return errNotYet
					}
				}
				return nil
			})
			requireAlike(t, host.name, before, l.api.everything(t))
		}
		for i, name := range []string{"all", "off"} {
			if a, b := installed[i], installed[3-i]; !reflect.DeepEqual(a, b) {
				t.Errorf("values %s: after an installation and an upgrade: %s", name, cmp.Diff(a, b))
			}
		}
	}, kubernetes, helm)
}

const helmChart = "../kube/chart"

// helmLab is a cluster without nodes and controllers, for Helm.
type helmLab struct {
	t   *testing.T
	api *kubeAPI
	dir string
}

func (l *helmLab) values(name string) string { return filepath.Join(l.dir, name+".yaml") }

func (l *helmLab) helm(args ...string) string {
	l.t.Helper()
	return l.api.host.run(helmProgram(), append(args, "--namespace=kube-system")...)
}

// prepare makes what the values take for granted.
func (l *helmLab) prepare() {
	l.t.Helper()
	need.NoError(l.t, l.api.admin.apply(object{"apiVersion": "v1", "kind": "Namespace",
		"metadata": object{"name": "milan"}}))
	for _, kind := range []string{"PodMonitor", "PrometheusRule"} { // of the Prometheus operator
		plural := kubePlurals[kind]
		need.NoError(l.t, l.api.admin.apply(object{"apiVersion": "apiextensions.k8s.io/v1",
			"kind": "CustomResourceDefinition", "metadata": object{"name": plural + ".monitoring.coreos.com"},
			"spec": object{"group": "monitoring.coreos.com", "scope": "Namespaced",
				"names": object{"kind": kind, "listKind": kind + "List", "plural": plural,
					"singular": strings.ToLower(kind)},
				"versions": []object{{"name": "v1", "served": true, "storage": true, "schema": object{
					"openAPIV3Schema": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}}))
		eventually(l.t, "the API server knows "+plural, func() error {
			_, err := l.api.admin.list("monitoring.coreos.com/v1", kind, "")
			return err
		})
	}
}

// rendered returns the objects that Helm makes of values, by their paths. culvert kube template
// prints the same.
func (l *helmLab) rendered(name string) map[string]object {
	l.t.Helper()
	file := l.values(name)
	if out := l.helm("lint", "--strict", helmChart, "--values", file); !strings.Contains(out, " 0 chart(s) failed") {
		l.t.Errorf("helm lint, values %s: %s", name, out)
	}
	byHelm := l.byPath(l.helm("template", "culvert", helmChart, "--kube-version=1.35.0", "--values", file))
	byCulvert := l.byPath(l.api.host.run(os.Getenv(binaryEnv), "kube", "template", "--values", file))
	if !reflect.DeepEqual(byHelm, byCulvert) || len(byHelm) < 20 {
		l.t.Errorf("values %s: %d objects of helm template, %d of culvert kube template: %s", name, len(byHelm),
			len(byCulvert), cmp.Diff(byCulvert, byHelm))
	}
	return byHelm
}

func (l *helmLab) byPath(text string) map[string]object {
	l.t.Helper()
	all := map[string]object{}
	for _, o := range parseResources(l.t, "manifests", []byte(strings.TrimPrefix(text, "---\n"))) {
		if o != nil { // comments alone
			all[pathOf(o)] = o
		}
	}
	return all
}

// stored returns what the cluster has of the objects of values, without what differs each time. It
// has nothing of other values alone.
func (l *helmLab) stored(made map[string]map[string]object, name string) map[string]object {
	l.t.Helper()
	all := map[string]object{}
	for _, objects := range made {
		for path, o := range objects {
			stored, err := l.api.admin.get(o)
			if wanted := made[name][path] != nil; wanted != (err == nil) {
				l.t.Errorf("values %s: %s: %v, want it: %v", name, path, err, wanted)
			}
			if err == nil {
				all[path] = asApplied(stored)
			}
		}
	}
	return all
}

// asApplied removes from an object what an API server makes of its own.
func asApplied(o object) object {
	delete(o, "status")
	for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"} {
		delete(field(o, "metadata").(object), name)
	}
	if notes, ok := field(o, "metadata", "annotations").(object); ok {
		delete(notes, "deprecated.daemonset.template.generation")
	}
	if o["kind"] == "Service" {
		spec := field(o, "spec").(object)
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
		delete(spec, "healthCheckNodePort")
		for _, port := range spec["ports"].([]any) {
			delete(port.(object), "nodePort")
		}
	}
	return o
}
