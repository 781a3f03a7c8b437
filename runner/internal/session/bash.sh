# The redirections hide traces and a trap on DEBUG. They need a command whose first word may be an alias, except `((`.
# Therefore `((` stands on a line of its own before, and disables aliases if an alias of a brace exists. The length of
# BASHOPTS shows whether aliases were enabled. A restricted shell may only redirect input, which hides its complaint.
__hx_z='2</dev/null >/dev/null 2>&1' __hx_t= __hx_s= __hx_e=
__hx_x='((__hx_r=$?, __hx_u=${#BASHOPTS}, 0${BASH_ALIASES["{"]+1}${BASH_ALIASES["}"]+1})) '$__hx_z$' && \\builtin shopt -u expand_aliases\n{ __hx_exit; } '$__hx_z
trap() {
	# set -x shows only the call.
	{ [[ $- == *x* ]] && builtin local - && builtin set +x; } 2</dev/null
	__hx_trap "$@"
}
# Any builtin may be shadowed by a function, even `builtin` itself: no builtin here ends a loop or a function.
__hx_trap() {
	# A subshell has its own traps. The state is written around the tenant's EXIT trap, so it becomes part of this trap.
	if [[ ${BASHPID:-$$} != "$$" || $BASH_SUBSHELL != 0 || ${1-} == -[lP] ]]; then
		builtin trap "$@"
	elif (($# == 0)) || [[ $1 == -p ]]; then
		__hx_show "${@:2}"
	else
		__hx_change "$@"
	fi
}
__hx_change() {
	builtin local __hx_a __hx_d __hx_g __hx_m __hx_n
	__hx_a=- __hx_d=() __hx_m= __hx_n=1
	[[ $1 != -- ]] || __hx_n=2
	if (($# > __hx_n)) && ! [[ ${!__hx_n} =~ ^[0-9]+$ ]]; then __hx_a=${!__hx_n} __hx_n=$((__hx_n + 1)); fi
	for __hx_g in "${@:__hx_n}"; do
		case $__hx_g in
		0 | [Ee][Xx][Ii][Tt]) __hx_m=1 ;;
		*) __hx_d+=("$__hx_g") ;;
		esac
	done
	if [[ $__hx_m ]]; then
		__hx_t=${__hx_a#-}
		if [[ $__hx_t ]]; then
			# In this form set -e does not end it, the status stays, and set -x shows nothing.
			builtin trap -- "$__hx_x && __hx_q() { :; }; $__hx_t"$'\n{ __hx_again; } '"$__hx_z" EXIT
		else
			builtin trap -- "$__hx_x" EXIT
		fi
	fi
	((${#__hx_d[@]} == 0)) || builtin trap -- "$__hx_a" "${__hx_d[@]}"
}
__hx_show() {
	builtin local __hx_d __hx_g __hx_k __hx_m
	__hx_d=() __hx_k="'\\''" __hx_m=1
	if (($#)); then
		__hx_m=
		for __hx_g; do
			case $__hx_g in
			0 | [Ee][Xx][Ii][Tt]) __hx_m=1 ;;
			*) __hx_d+=("$__hx_g") ;;
			esac
		done
	else
		__hx_d=({1..31} DEBUG ERR RETURN)
	fi
	if [[ $__hx_m && $__hx_t ]]; then builtin printf "trap -- '%s' EXIT\n" "${__hx_t//\'/$__hx_k}"; fi
	((${#__hx_d[@]} == 0)) || builtin trap -p "${__hx_d[@]}"
}
# A shell that ends inside functions still has their local variables, which hide global variables of the same name. An
# attribute that is set on the global variable shows only if nothing hides it. Local variables are removed if possible,
# unless the tenant's trap still needs them; the others are reported by name. A reference has no own attribute.
__hx_locals() {
	\builtin local __hx_a __hx_d __hx_i __hx_n
	__hx_a= __hx_d=() __hx_h=
	for __hx_n in "${FUNCNAME[@]}"; do
		[[ $__hx_n == __hx_* || $__hx_n == main || $__hx_n == source ]] || __hx_a=inside
	done
	if [[ $__hx_a ]] && ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501)); then
		__hx_d=("${!_@}" "${!a@}" "${!b@}" "${!c@}" "${!d@}" "${!e@}" "${!f@}" "${!g@}" "${!h@}" "${!i@}" "${!j@}" "${!k@}" "${!l@}" "${!m@}" \
			"${!n@}" "${!o@}" "${!p@}" "${!q@}" "${!r@}" "${!s@}" "${!t@}" "${!u@}" "${!v@}" "${!w@}" "${!x@}" "${!y@}" "${!z@}" "${!A@}" \
			"${!B@}" "${!C@}" "${!D@}" "${!E@}" "${!F@}" "${!G@}" "${!H@}" "${!I@}" "${!J@}" "${!K@}" "${!L@}" "${!M@}" "${!N@}" "${!O@}" \
			"${!P@}" "${!Q@}" "${!R@}" "${!S@}" "${!T@}" "${!U@}" "${!V@}" "${!W@}" "${!X@}" "${!Y@}" "${!Z@}")
	fi
	# The time grows with the square of their number.
	((${#__hx_d[@]} <= 1000)) || __hx_d=()
	for __hx_n in "${__hx_d[@]}"; do
		[[ $__hx_n == __hx_* ]] && __hx_a=t || __hx_a=
		for ((__hx_i = 0; __hx_i < 9; __hx_i++)); do
			if [[ $__hx_a != *t* && ! -R $__hx_n ]]; then
				\builtin declare -gt "$__hx_n"
				__hx_a=${!__hx_n@a}
				\builtin declare -g +t "$__hx_n"
				[[ $__hx_a == *t* ]] || { [[ ! $__hx_t ]] && \builtin unset -v "$__hx_n"; } || __hx_i=9
			fi
		done
		[[ $__hx_a == *t* ]] || __hx_h+=" $__hx_n"
	done
	[[ $__hx_p ]]
}
# The record is complete only if each of these commands succeeds.
__hx_save() {
	__hx_p=
	{
		\builtin printf -v __hx_p %s works && [[ $__hx_p ]] && __hx_locals &&
			\builtin printf '\0[\0' && \builtin pwd &&
			\builtin printf '\0%s' "$__hx_l" "$__hx_f" "$__hx_o" "$__hx_b" '' && \builtin umask &&
			\builtin printf '\0' && \builtin declare -p &&
			\builtin printf '\0' && \builtin alias -p &&
			# Remove the wrapper's functions, except those that the tenant's trap still needs; running ones continue.
			{ [[ $__hx_t ]] || \builtin unset -f __hx_again __hx_bare __hx_change __hx_exit __hx_locals __hx_mark __hx_own __hx_save __hx_show __hx_trap || :; } &&
			\builtin printf '\0' && \builtin declare -f &&
			\builtin printf '\0%s\n' "$__hx_e" && \builtin declare -Fx &&
			\builtin printf '\0%s\n' "$__hx_s" &&
			{ \builtin declare -f "${__hx_v[@]}" || [[ $__hx_p ]]; } &&
			\builtin printf '\0%s\0]' "$__hx_h"
	} >"$__hx_w"
}
# Runs in a subshell if the tenant's functions shadow builtins, or builtins are disabled. In POSIX mode special
# builtins come before functions; other builtins never do.
__hx_bare() {
	POSIXLY_CORRECT=y
	\set +euvx
	__hx_e=$(\unset -f typeset; \typeset -Fx) || \return
	__hx_s=$(\unset -f typeset; \typeset -f "${__hx_v[@]}")
	\unset -f "${__hx_v[@]}"
	\unset POSIXLY_CORRECT
	\enable alias builtin declare printf pwd umask
}
__hx_exit() {
	__hx_f=$- __hx_o=$SHELLOPTS __hx_b=$BASHOPTS
	\builtin set +euvx || :
	\builtin trap - DEBUG ERR RETURN || :
	((__hx_u == ${#__hx_b})) || __hx_b+=:expand_aliases
	# GLOBIGNORE changes dotglob, which BASHOPTS does not show.
	[[ ${GLOBIGNORE-} || $__hx_b == *dotglob* ]] && { \builtin shopt -q dotglob && __hx_b+=:dotglob || __hx_b=${__hx_b/dotglob/}; }
	__hx_save || (__hx_bare && __hx_save) || :
	if [[ $__hx_t ]]; then
		[[ $__hx_f != *e* ]] || \builtin set -e
		[[ $__hx_f != *u* ]] || \builtin set -u
		[[ $__hx_f != *x* ]] || \builtin set -x
		\builtin return "$__hx_r"
	fi
}
__hx_again() {
	\builtin set +euvx || :
	__hx_save || (__hx_bare && __hx_save)
}
builtin trap -- "$__hx_x" EXIT
