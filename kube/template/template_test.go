package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"culvert/integration/need"
)

// forEach runs a test with each captured gateway.
func forEach(t *testing.T, test func(t *testing.T, capture string, server bool)) {
	for _, capture := range captures {
		for _, end := range ends {
			t.Run(capture+" "+end.file, func(t *testing.T) { test(t, capture, end.server) })
		}
	}
}

func captured(t *testing.T, capture string, server bool) map[string]any {
	t.Helper()
	if server {
		return readObject(t, capture, ends[0].file)
	}
	return readObject(t, capture, ends[1].file)
}

func rendered(t *testing.T, template map[string]any, g Gateway) map[string]any {
	t.Helper()
	o, err := Render(template, g)
	need.NoError(t, err)
	return o
}

// The stock templates are rendered as Liqo's operator has rendered them.
func TestRenderAsLiqosOperator(t *testing.T) {
	forEach(t, func(t *testing.T, capture string, server bool) {
		got, want := rendered(t, stockOf(t, capture, server), gatewayOf(t, capture, server)),
			captured(t, capture, server)
		if d := cmp.Diff(want["spec"], got["spec"]); d != "" {
			t.Errorf("spec, - as captured:\n%s", d)
		}
		if got["kind"] != want["kind"] || Field(got, "metadata", "name") != Field(want, "metadata", "name") {
			t.Errorf("a %v %v", got["kind"], Field(got, "metadata", "name"))
		}
	})
}

// Everything of the captured gateway except its containers stays, so its Deployment accepts the
// change and its Service selects our pod.
func TestADeploymentCanBeSwitched(t *testing.T) {
	forEach(t, func(t *testing.T, capture string, server bool) {
		g, was := gatewayOf(t, capture, server), captured(t, capture, server)
		made, notes, err := From(stockOf(t, capture, server), "registry.invalid/culvert:1", 1)
		need.NoError(t, err)
		is := rendered(t, made, g)
		same := func(path ...string) {
			t.Helper()
			if d := cmp.Diff(Field(was, path...), Field(is, path...)); d != "" {
				t.Errorf("%s, - as captured:\n%s", strings.Join(path, "."), d)
			}
		}
		same("kind")
		same("spec", "secretRef")
		same("spec", "service")
		same("spec", "deployment", "metadata")
		same("spec", "deployment", "spec", "selector")
		pod := []string{"spec", "deployment", "spec", "template"}
		same(append(pod, "spec", "serviceAccountName")...)
		labels := maps.Clone(Field(was, append(pod, "metadata", "labels")...).(map[string]any))
		labels["networking.liqo.io/active"] = "true"
		if d := cmp.Diff(labels, Field(is, append(pod, "metadata", "labels")...)); d != "" {
			t.Errorf("labels of the pod:\n%s", d)
		}
		if n := Field(is, "spec", "deployment", "spec", "replicas"); n != int64(1) {
			t.Errorf("%v replicas", n)
		}
		if replicas := Field(was, "spec", "deployment", "spec", "replicas"); (replicas != int64(1)) !=
			(len(notes) == 1) {
			t.Errorf("of %v replicas it notes %q", replicas, notes)
		}
		flags := flagsOf(podOf(is))
		want := map[string]string{
			"liqo": "", "name": g.Name, "namespace": g.Namespace, "remote-cluster-id": g.ClusterID,
			"gateway-uid": g.GatewayUID,
			"node-name":   "$(NODE_NAME)", "pod-name": "$(POD_NAME)", "state": "/var/lib/culvert", "mtu": "1340",
			"geneve-port":  "6091",
			"ping-enabled": "true", "ping-interval": "2s", "ping-loss-threshold": "5",
			"ping-update-status-interval": "10s",
			"health-probe-bind-address":   ":8085",
		}
		s := "s"
		if capture == "v1.2.0" {
			s = ""
		}
		if server {
			want["mode"], want["listen-port"+s] = "server", "51840"
		} else {
			want["mode"], want["endpoint-address"], want["endpoint-port"+s] = "client", "192.0.2.99", "31840"
		}
		if d := cmp.Diff(want, flags); d != "" {
			t.Errorf("flags:\n%s", d)
		}
	})
}

// The built-in defaults give the same as the templates of Liqo's chart with its own settings.
func TestDefaultsAreThoseOfTheChart(t *testing.T) {
	for _, end := range ends {
		g, was := gatewayOf(t, "v1.2.0", end.server), captured(t, "v1.2.0", end.server)
		made, notes, err := From(Default(end.server, "liqo", "liqo"), image, 1)
		if err != nil || notes != nil {
			t.Fatal(notes, err)
		}
		fromStock, _, err := From(stockOf(t, "v1.2.0", end.server), image, 1)
		need.NoError(t, err)
		is := rendered(t, made, g)
		for _, path := range [][]string{{"spec", "service", "spec"}, {"spec", "deployment", "spec", "selector"},
			{"spec", "secretRef"}} {
			if d := cmp.Diff(Field(was, path...), Field(is, path...)); d != "" {
				t.Errorf("%s, - as captured:\n%s", strings.Join(path, "."), d)
			}
		}
		if d := cmp.Diff(podOf(rendered(t, fromStock, g)), podOf(is)); d != "" {
			t.Errorf("pod, - from the stock template:\n%s", d)
		}
	}
}

// The pod has one container, which asks for no rights and no user of its own.
func TestThePodAsksForNothing(t *testing.T) {
	for _, end := range ends {
		made, _, err := From(stockOf(t, "main-557c199cf", end.server), image, 1)
		need.NoError(t, err)
		pod := podOf(rendered(t, made, gatewayOf(t, "main-557c199cf", end.server)))
		if n := len(list(pod["containers"])); n != 1 {
			t.Fatalf("%d containers", n)
		}
		c := list(pod["containers"])[0].(map[string]any)
		want := object(t, `
pod: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
container: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
mounts:
- {name: wireguard-config, mountPath: /etc/wireguard/keys, readOnly: true}
- {name: run, mountPath: /run/culvert}
- {name: state, mountPath: /var/lib/culvert}
volumes:
- {name: wireguard-config, secret: {secretName: ""}}
- {name: run, emptyDir: {sizeLimit: 16Mi}}
- {name: state, emptyDir: {sizeLimit: 128Mi}}
ports: [{name: healthz, containerPort: 8085, protocol: TCP}]
live: {httpGet: {path: /healthz, port: healthz}, periodSeconds: 10}
ready: {httpGet: {path: /readyz, port: healthz}, periodSeconds: 2}
`)
		got := map[string]any{
			"pod": pod["securityContext"], "container": c["securityContext"], "mounts": c["volumeMounts"],
			"volumes": pod["volumes"],
			"ports":   c["ports"], "live": c["livenessProbe"], "ready": c["readinessProbe"],
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
}

// Changes of operators to their stock templates are taken over, or reported in a note.
func TestChangedTemplates(t *testing.T) {
	pod := []string{"spec", "template", "spec", "deployment", "spec", "template", "spec"}
	container := func(stock map[string]any, i int) map[string]any {
		return list(Field(stock, append(pod, "containers")...))[i].(map[string]any)
	}
	addArg := func(i int, args ...any) func(map[string]any) {
		return func(stock map[string]any) { c := container(stock, i); c["args"] = append(list(c["args"]), args...) }
	}
	set := func(name, text string) func(map[string]any) {
		return func(stock map[string]any) { Field(stock, pod...).(map[string]any)[name] = object(t, "v: "+text)["v"] }
	}
	for _, tt := range []struct {
		name   string
		change func(stock map[string]any)
		at     []string // of the rendered pod
		want   string   // in it
		note   string
	}{
		{"tolerations", set("tolerations", "[{key: edge, operator: Exists}]"), []string{"tolerations"}, "edge", ""},
		{"node selector", set("nodeSelector", "{edge: 'yes'}"), []string{"nodeSelector", "edge"}, "yes", ""},
		{"affinity", set("affinity", "{nodeAffinity: {x: here}}"), []string{"affinity", "nodeAffinity",
			"x"}, "here", ""},
		{"priority", set("priorityClassName", "high"), []string{"priorityClassName"}, "high", ""},
		{"pull secrets", set("imagePullSecrets", "[{name: pull}]"), []string{"imagePullSecrets"}, "pull", ""},
		{"the nodes' network", set("hostNetwork", "true"), []string{"hostNetwork"}, "<nil>",
			"hostNetwork of the pod is left out"},
		{"a null", set("tolerations", "null"), []string{"tolerations"}, "<nil>", ""},
		{"metrics", addArg(1, "--metrics-address=:8084"), []string{"containers"},
			"containerPort:8084 name:wg-metrics", ""},
		{"metrics of two containers", func(stock map[string]any) {
			addArg(0, "--metrics-address=:8082")(stock)
			addArg(1, "--metrics-address=:8084")(stock)
		}, []string{"containers"}, "--metrics-address=:8084", ""},
		{"another port", addArg(2, "--ping-port", "54321"), []string{"containers"}, "--ping-port=54321", ""},
		{"another folder", addArg(1, "--keys-dir=/keys"), []string{"containers"}, "mountPath:/keys", ""},
		{"a switch", addArg(1, "--enable-leader"), []string{"containers"}, "",
			"--enable-leader of container wireguard is left out"},
		{"a helper", func(stock map[string]any) {
			p := Field(stock, pod...).(map[string]any)
			p["containers"] = append(list(p["containers"]), map[string]any{"name": "tcp-healthcheck", "image": "nginx"})
		}, []string{"containers"}, "", "container tcp-healthcheck is left out"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stock := stockOf(t, "main-557c199cf", true)
			tt.change(stock)
			made, notes, err := From(stock, image, 1)
			need.NoError(t, err)
			got := fmt.Sprint(Field(podOf(rendered(t, made, gatewayOf(t, "main-557c199cf", true))), tt.at...))
			if !strings.Contains(got, tt.want) {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if text := strings.Join(notes, "\n"); !strings.HasPrefix(text, tt.note) || (tt.note == "") != (text == "") {
				t.Errorf("notes %q, want %q", notes, tt.note)
			}
		})
	}
}

func TestRefusedTemplates(t *testing.T) {
	remove := func(path ...string) func(map[string]any) {
		return func(stock map[string]any) {
			last := len(path) - 1
			delete(Field(stock, path[:last]...).(map[string]any), path[last])
		}
	}
	template := []string{"spec", "template", "spec", "deployment", "spec", "template"}
	for _, tt := range []struct {
		name   string
		change func(stock map[string]any)
		want   string
	}{
		{"another kind", func(s map[string]any) { s["kind"] = "Pod" }, "kind: Pod is neither"},
		{"another object", func(s map[string]any) {
			Field(s, "spec",
				"objectKind").(map[string]any)["kind"] = "OurServer"
		}, "spec.objectKind.kind: OurServer"},
		{"no Deployment", remove("spec", "template", "spec", "deployment"),
			"spec.template.spec.deployment.spec: missing"},
		{"no account", remove(append(slices.Clone(template), "spec", "serviceAccountName")...),
			"serviceAccountName: missing"},
		{"no label", remove(append(slices.Clone(template), "metadata", "labels", "networking.liqo.io/gateway-name")...),
			"no networking.liqo.io/gateway-name"},
		{"metrics anywhere", func(s map[string]any) {
			c := list(Field(s, append(slices.Clone(template), "spec", "containers")...))[1].(map[string]any)
			c["args"] = append(list(c["args"]), "--metrics-address={{ .Name }}")
		}, "--metrics-address={{ .Name }}: want :PORT"},
		{"nothing", func(s map[string]any) { clear(s) }, "kind: <nil> is neither"},
	} {
		stock := stockOf(t, "v1.2.0", true)
		tt.change(stock)
		if made, _, err := From(stock, image, 1); err == nil || made != nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// With a cluster ID of digits alone, every argument is still a string.
func TestArgumentsStayStrings(t *testing.T) {
	for _, end := range ends {
		g := gatewayOf(t, "v1.2.0", end.server)
		g.ClusterID, g.GatewayUID = "12345", "67890"
		made, _, err := From(Default(end.server, "liqo", "liqo"), image, 1)
		need.NoError(t, err)
		c := list(podOf(rendered(t, made, g))["containers"])[0].(map[string]any)
		for _, arg := range list(c["args"]) {
			if _, ok := arg.(string); !ok {
				t.Errorf("%v is a %T", arg, arg)
			}
		}
	}
}

func TestRender(t *testing.T) {
	var g Gateway
	g.Name, g.Spec.Endpoint.Port = "7", 51840
	for _, tt := range []struct{ in, want string }{
		{`{port: "{{ .Spec.Endpoint.Port }}", name: "{{ .Name }}"}`, `{port: 51840, name: 7}`},
		{`{"?nodePort": "{{ .Spec.Endpoint.NodePort }}", "?port": "{{ .Spec.Endpoint.Port }}"}`, `{port: 51840}`},
		{`{labels: {name: "{{ .Name }}"}, name: "{{ .Name }}", generation: 3}`,
			`{labels: {name: "7"}, name: "7", generation: "3"}`},
		{`{matchLabels: {name: "{{ .Name }}"}}`, `{matchLabels: {name: 7}}`},
		{`{list: ["{{ .Name }}", "--name={{ .Name }}", true]}`, `{list: [7, "--name=7", true]}`},
	} {
		got, err := render("spec", object(t, tt.in), g, false)
		if d := cmp.Diff(any(object(t, tt.want)), got); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", tt.in, err, d)
		}
	}
	for in, want := range map[string]string{
		`{a: [{b: null}]}`:                  "spec.a[0].b: null",
		`{a: "{{ .Spec.Nothing }}"}`:        "can't evaluate field Nothing",
		`{a: "{{ .Name"}`:                   "spec.a",
		`{a: "{{ index .Name ` + "`x`}}\"}": "spec.a",
	} {
		if _, err := render("spec", object(t, in), g, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
}
