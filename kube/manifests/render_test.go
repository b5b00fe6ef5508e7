package manifests_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/kube/manifests"
)

// A manifest is what the tests read of objects.
type manifest struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Rules    []struct{ APIGroups, Resources, Verbs []string }
	RoleRef  struct{ Kind, Name string }
	Subjects []struct{ Kind, Name, Namespace string }
	Data     map[string]string
	Spec     struct {
		UpdateStrategy any
		Template       struct {
			Spec struct {
				ServiceAccountName string
				Volumes            []struct {
					Name      string
					ConfigMap struct{ Name string }
				}
				Containers []struct {
					Image        string
					Args         []string
					Resources    struct{ Requests, Limits map[string]string }
					VolumeMounts []struct{ Name, MountPath string }
				}
			}
		}
	}
}

// named returns the objects of a text, by kind, namespace and name.
func named(t *testing.T, text string) map[string]manifest {
	t.Helper()
	all := map[string]manifest{}
	for _, one := range strings.Split(text, "\n---\n") {
		var m manifest
		if err := yaml.UnmarshalStrict([]byte(one), new(any)); err != nil {
			t.Fatalf("%v in %s", err, one)
		}
		if err := yaml.Unmarshal([]byte(one), &m); err != nil {
			t.Fatalf("%v in %s", err, one)
		}
		key := m.Kind + " " + m.Metadata.Namespace + "/" + m.Metadata.Name
		if _, twice := all[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		all[key] = m
	}
	return all
}

// rights returns what the ServiceAccount culvert-links of a namespace may do, as bindings and roles
// of all say.
func rights(all map[string]manifest, account, namespace string) (list []string) {
	for _, b := range all {
		if !strings.HasSuffix(b.Kind, "Binding") || len(b.Subjects) != 1 || b.Subjects[0].Name != account ||
			b.Subjects[0].Namespace != namespace {
			continue
		}
		in := ""
		if b.RoleRef.Kind == "Role" {
			in = b.Metadata.Namespace
		}
		for _, r := range all[b.RoleRef.Kind+" "+in+"/"+b.RoleRef.Name].Rules {
			list = append(list, fmt.Sprint(strings.Replace(in, "kube-system", namespace, 1), r.APIGroups,
				r.Resources, r.Verbs))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// TestStatusInPods: culvert status finds the process of each pod, whose root is read-only, by a
// folder of its own.
func TestStatusInPods(t *testing.T) {
	gateway := &manifests.Gateway{Peering: "milan", Image: "r.example/c:2", Expose: "ClusterIP", Replicas: 2}
	seen := 0
	for _, text := range []string{manifests.Nodes, manifests.LiqoNodes, manifests.Services, gateway.YAML()} {
		for key, o := range named(t, text) {
			for _, c := range o.Spec.Template.Spec.Containers {
				seen++
				if !slices.ContainsFunc(c.VolumeMounts, func(m struct{ Name, MountPath string }) bool {
					return m.Name == "run" && m.MountPath == "/run/culvert"
				}) {
					t.Errorf("%s: %+v", key, c.VolumeMounts)
				}
			}
		}
	}
	if seen != 4 {
		t.Errorf("%d containers", seen)
	}
}

// TestLiqoNodesOf: the manifest for nodes has the image and the namespace that were asked for,
// everywhere, and with Services the rights, mounts and settings of both manifests.
func TestLiqoNodesOf(t *testing.T) {
	for _, serve := range []string{"", "labelled", "all"} {
		text := manifests.LiqoNodesOf("r.example/c:2", "net", serve)
		if beside := serve == ""; strings.Contains(text, "maxSurge") != beside ||
			strings.Contains(text, "startupProbe") != beside {
			t.Errorf("%q: the next pod starts first %v, want %v: one that serves Services cannot wait", serve,
				!beside, beside)
		}
		all := named(t, text)
		if strings.Contains(text, "[liqo]") || !strings.Contains(text, "resourceNames: [net]") {
			t.Errorf("%q: a right to read another namespace", serve)
		}
		for key, o := range all {
			if strings.Contains(key, "liqo/") || strings.Contains(key, "kube-system") {
				t.Errorf("%q: %s", serve, key)
			}
			for _, s := range o.Subjects {
				if s.Namespace != "net" || s.Name != "culvert-links" {
					t.Errorf("%q: %s: a subject %+v", serve, key, s)
				}
			}
		}
		pod := all["DaemonSet net/culvert-links"].Spec.Template.Spec
		if len(pod.Containers) != 1 {
			t.Fatalf("%q: %+v", serve, all)
		}
		c := pod.Containers[0]
		want := []string{"node", "--liqo", "--daemonset=net/culvert-links"}
		mounted := []string{"/dev/net/tun", "/run/culvert"}
		granted := rights(named(t, manifests.LiqoNodes), "culvert-links", "liqo")
		for i := range granted {
			granted[i] = strings.Replace(granted[i], "liqo[", "net[", 1)
		}
		if serve != "" {
			want = append(want, "--services="+serve, "--config=/etc/culvert/node.yaml",
				"--lease-namespace=culvert-leases")
			mounted = append(mounted, "/etc/culvert", "/var/lib/culvert")
			for _, right := range rights(named(t, manifests.Services), "culvert-node", "kube-system") {
				if !strings.Contains(right, "daemonsets") { // it asks for its own
					granted = append(granted, right)
				}
			}
			if text := all["ConfigMap net/culvert-links"].Data["node.yaml"]; !strings.Contains(text,
				"state: /var/lib/culvert") {
				t.Errorf("%q: node.yaml: %s", serve, text)
			}
			if c.Resources.Limits != nil || c.Resources.Requests["cpu"] != "300m" {
				t.Errorf("%q: resources %+v", serve, c.Resources)
			}
		}
		if c.Image != "r.example/c:2" || !slices.Equal(c.Args, want) {
			t.Errorf("%q: %+v, want %q", serve, c, want)
		}
		var mounts []string
		for _, m := range c.VolumeMounts {
			mounts = append(mounts, m.MountPath)
			if !slices.ContainsFunc(pod.Volumes, func(v struct {
				Name      string
				ConfigMap struct{ Name string }
			}) bool {
				return v.Name == m.Name
			}) {
				t.Errorf("%q: no volume %s", serve, m.Name)
			}
		}
		if !slices.Equal(mounts, mounted) {
			t.Errorf("%q: mounted %q, want %q", serve, mounts, mounted)
		}
		slices.Sort(granted)
		granted = slices.Compact(granted)
		if have := rights(all, "culvert-links", "net"); !slices.Equal(have, granted) {
			t.Errorf("%q: rights\n%s\nwant\n%s", serve, strings.Join(have, "\n"), strings.Join(granted, "\n"))
		}
	}
}
