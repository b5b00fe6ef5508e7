# Shows of `go test -v` what a reader wants: each package's result, why tests were skipped, and everything of a package that
# failed. What failed and why comes once more at the end, for who sees no more of it.
/^ok |^ok\t/ { printf "%s", skips; print; forget(); fflush(); next }
/^FAIL\t/ { printf "%s", all; print; note($2); forget(); fflush(); next }
/^\?/ { next }
/^=== (RUN|NAME|CONT)/ { test = $3 }
/^ +[^ ]+:[0-9]+: / { said[test] = $0; sub(/^ +/, "", said[test]) }
/^    / && !/^ *--- / { lines[test]++; line[test, lines[test]] = $0 }
/^(panic|fatal error): / && crash == "" { crash = $0 }
/^ *--- FAIL/ { failed[++failures] = $3 }
/^ *--- SKIP/ { skips = skips $2 " " $3 " " said[$3] "\n" }
{ all = all $0 "\n" }
END { printf "%s%s", all, causes }

# note takes the last lines of each failed test, but not of one that failed by its subtests.
function note(package,   i, j) {
	if (crash != "" || !failures) causes = causes "failed: " package " " crash "\n"
	for (i = 1; i <= failures; i++) {
		for (j = 1; j <= failures && index(failed[j], failed[i] "/") != 1; j++) {}
		if (j <= failures) continue
		causes = causes "failed: " package " " failed[i] "\n"
		for (j = lines[failed[i]] - 9; j <= lines[failed[i]]; j++) if (j > 0) causes = causes line[failed[i], j] "\n"
	}
}

function forget() {
	all = skips = test = crash = ""
	failures = 0
	split("", said); split("", lines); split("", line)
}
