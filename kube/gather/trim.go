package gather

// kept are the fields of objects that are collected. Secrets and ConfigMaps have none of them but
// metadata, and are asked for nowhere.
var kept = []string{"apiVersion", "kind", "spec", "status", "involvedObject", "regarding", "reason", "message", "note",
	"type", "count", "firstTimestamp", "lastTimestamp", "eventTime", "series", "source", "reportingComponent",
	"reportingController", "action", "endpoints", "ports", "addressType"}

// keptMetadata are the fields of metadata.
var keptMetadata = []string{"name", "namespace", "labels", "creationTimestamp", "deletionTimestamp", "generation",
	"ownerReferences"}

// trim returns what is collected of an object, whose parts it changes.
func trim(o map[string]any) map[string]any {
	metadata, _ := o["metadata"].(map[string]any)
	out := pick(o, kept...)
	out["metadata"] = pick(metadata, keptMetadata...)
	for _, id := range []string{"machineID", "systemUUID", "bootID"} {
		delete(part(part(o, "status"), "nodeInfo"), id)
	}
	for _, long := range []string{"images", "volumesInUse", "volumesAttached"} {
		delete(part(o, "status"), long)
	}
	for _, spec := range []map[string]any{part(o, "spec"), part(part(part(o, "spec"), "template"), "spec")} {
		delete(spec, "volumes") // with their mounts: culvert's own are the manifest's
		for _, kind := range []string{"containers", "initContainers"} {
			all, _ := spec[kind].([]any)
			for _, c := range all {
				hideEnv(c)
				container, _ := c.(map[string]any)
				delete(container, "volumeMounts")
			}
		}
	}
	return out
}

// hideEnv removes the values of a container's environment, which may be secrets.
func hideEnv(container any) {
	c, _ := container.(map[string]any)
	env, _ := c["env"].([]any)
	for _, e := range env {
		if v, ok := e.(map[string]any); ok && v["value"] != nil {
			v["value"] = "(hidden)"
		}
	}
}

func pick(o map[string]any, fields ...string) map[string]any {
	out := map[string]any{}
	for _, f := range fields {
		if v, ok := o[f]; ok {
			out[f] = v
		}
	}
	return out
}

// part returns an object inside another one, or nil, which may be read and deleted from.
func part(o map[string]any, field string) map[string]any {
	p, _ := o[field].(map[string]any)
	return p
}
